"""Classifies a share of the held-out digits: one element of an array."""

import csv
import os
import sys

import torch

from digits import load, network

out = sys.argv[1]
share = int(os.environ["SLURM_ARRAY_TASK_ID"]) - int(os.environ["SLURM_ARRAY_TASK_MIN"])
shares = int(os.environ["SLURM_ARRAY_TASK_COUNT"])
model = network()
model.load_state_dict(torch.load(os.path.join(out, "checkpoint.pt"), map_location="cpu")["model"])
model.eval()
_, (images, _) = load("digits.csv.gz")
rows = range(share, len(images), shares)
with torch.no_grad():
    digits = model(images[rows.start::shares]).argmax(1).tolist()
with open(os.path.join(out, f"predictions-{share}.csv"), "w", newline="") as f:
    csv.writer(f).writerows(zip(rows, digits))
print(f"share {share} of {shares}: {len(rows)} rows")
