"""Trains the network, data-parallel: a rank of torchrun's.

After each epoch, and when it is told to end (SIGTERM: requeued, preempted, cancelled), the first
rank writes a checkpoint, from which the next start goes on."""

import argparse
import os
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from digits import load, network


def until_signal(stop):
    """Hears of the signal also while the rank waits for others that are not there any more; then
    nothing but the last checkpoint is left."""
    signal.sigwait({signal.SIGTERM})
    stop.set()
    time.sleep(3)
    os._exit(128 + signal.SIGTERM)


def save(path, model, optimizer, epoch, batch):
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "batch": batch}
    torch.save(state, path + ".next")
    os.replace(path + ".next", path)  # at once: who is killed meanwhile leaves the one before


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", default="digits.csv.gz")
    arguments.add_argument("--out", default="out")
    arguments.add_argument("--epochs", type=int, default=12)
    arguments.add_argument("--batch", type=int, default=32)
    arguments = arguments.parse_args()

    # Before any thread is there, so that none of them is ended by the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    stop = threading.Event()
    threading.Thread(target=until_signal, args=[stop], daemon=True).start()

    torch.manual_seed(1)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    (images, digits), held_out = load(arguments.data)
    sampler = DistributedSampler(images, shuffle=True)
    batches = DataLoader(TensorDataset(images, digits), arguments.batch, sampler=sampler)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    checkpoint = os.path.join(arguments.out, "checkpoint.pt")
    epoch, batch = 0, 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch, batch = state["epoch"], state["batch"]
    where = f"resumes after epoch {epoch}" + (f" and {batch} batches" if batch else "") if epoch or batch else "begins"
    print(f"rank {rank} of {world} on {socket.gethostname()}, {device}: {len(sampler)} of {len(images)} rows, {where}", flush=True)

    while epoch < arguments.epochs:
        began, total, count = time.time(), torch.zeros(1, device=device), 0
        model.train()
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(batches):
            if number < batch:
                continue  # it was done before the checkpoint
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total, count = total + loss.detach(), count + 1
            if stop.is_set() and rank == 0:
                save(checkpoint, model, optimizer, epoch, number + 1)
                print(f"told to end: epoch {epoch} and {number + 1} batches are kept", flush=True)
                os._exit(128 + signal.SIGTERM)
        dist.all_reduce(total)
        epoch, batch = epoch + 1, 0
        if rank == 0:
            model.eval()
            with torch.no_grad():
                right = (model.module(held_out[0].to(device)).argmax(1).cpu() == held_out[1]).float().mean().item()
            save(checkpoint, model, optimizer, epoch, 0)
            print(f"epoch {epoch} of {arguments.epochs}: loss {total.item() / world / max(1, count):.4f}, "
                  f"held-out accuracy {100 * right:.1f} %, {time.time() - began:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
