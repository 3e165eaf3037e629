package main

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// vector sizes for tests that count, not measure.
const (
	fewElements = 1 << 20
	fewTimes    = 10
)

// checks are all but those of speed.
func (t *test) checks() {
	t.check("without --gpus nothing of the driver is there", t.withoutGPUs())
	for i, id := range t.gpus {
		t.check(fmt.Sprintf("--gpus %s: it alone is visible, and adds vectors", id), t.only(id, "--gpus="+id))
		t.check(fmt.Sprintf("--gpus device=%d is %s", i, id), t.only(id, fmt.Sprintf("--gpus=device=%d", i)))
	}
	t.check("--gpus all: all are visible", t.all())
	t.check("a GPU that is not there is refused, and those that are there are named", t.unknown())
	t.check("two runs at once have different GPUs, or the second is told who has it", t.leases())
	t.check("as root of the container, which may be written to, the GPU is there too", t.only(t.gpus[0], "--gpus="+t.gpus[0], "--container-remap-root", "--container-writable"))
}

func (t *test) withoutGPUs() error {
	nodes, err := t.run(nil, "/gputest", insideVerb, "nodes")
	if err != nil || nodes != "" {
		return fmt.Errorf("nodes %q: %w", nodes, err)
	}
	if _, err := t.run(nil, "/vectoradd", "1024", "1"); err == nil || !strings.Contains(err.Error(), "libcuda.so.1") {
		return fmt.Errorf("the image has a libcuda of its own: %w", err)
	}
	return nil
}

// only checks that a run sees one GPU.
func (t *test) only(id string, options ...string) error {
	list, err := t.run(options, "nvidia-smi", "-L")
	if err != nil {
		return fmt.Errorf("nvidia-smi -L: %w", err)
	}
	if seen := uuids(list); !slices.Equal(seen, []string{id}) {
		return fmt.Errorf("nvidia-smi -L lists %s", list)
	}
	text, err := t.run(options, "/gputest", insideVerb, "nodes")
	if err != nil {
		return err
	}
	nodes := strings.Fields(text)
	gpus := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool {
		number, _ := strings.CutPrefix(n, "/dev/nvidia")
		return strings.Trim(number, "0123456789") != ""
	})
	if len(gpus) != 1 || !slices.Contains(nodes, "/dev/nvidiactl") || !slices.Contains(nodes, "/dev/nvidia-uvm") {
		return fmt.Errorf("the nodes are %s", nodes)
	}
	a, err := t.vectors(func(args ...string) (string, error) { return t.run(options, args...) }, "/vectoradd", fewElements, fewTimes)
	if err != nil {
		return err
	}
	if a.devices != 1 || a.uuid != id {
		return fmt.Errorf("CUDA sees %d GPUs, the first is %s (%s)", a.devices, a.uuid, a.name)
	}
	return nil
}

func (t *test) all() error {
	list, err := t.run([]string{"--gpus=all"}, "nvidia-smi", "-L")
	if err != nil {
		return err
	}
	if seen := uuids(list); !slices.Equal(slices.Sorted(slices.Values(seen)), slices.Sorted(slices.Values(t.gpus))) {
		return fmt.Errorf("nvidia-smi -L lists %s, outside it lists %s", list, t.gpus)
	}
	a, err := t.vectors(func(args ...string) (string, error) { return t.run([]string{"--gpus=all"}, args...) }, "/vectoradd", fewElements, fewTimes)
	if err == nil && a.devices != len(t.gpus) {
		err = fmt.Errorf("CUDA sees %d GPUs of %d", a.devices, len(t.gpus))
	}
	return err
}

func (t *test) unknown() error {
	_, err := t.run([]string{"--gpus=GPU-00000000-0000-0000-0000-000000000000"}, "/gputest", insideVerb, "true")
	failed, ok := errors.AsType[*runError](err)
	if !ok || failed.code != 125 || !strings.Contains(failed.text, t.gpus[0]) {
		return fmt.Errorf("it ends with %w", err)
	}
	return nil
}

// leases holds one GPU and asks for another.
func (t *test) leases() (err error) {
	holder := t.command(t.gangway, t.runArgs([]string{"--gpus=1"}, "/gputest", insideVerb, "wait")...)
	in, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := holder.Start(); err != nil {
		return err
	}
	defer func() {
		_, isExit := errors.AsType[*exec.ExitError](err)
		if e := errors.Join(in.Close(), holder.Wait()); !isExit {
			err = errors.Join(err, e)
		}
	}()
	first, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the first run: %w", err)
	}
	second, err := t.run([]string{"--gpus=1"}, "/gputest", insideVerb, "nodes")
	if len(t.gpus) == 1 {
		failed, ok := errors.AsType[*runError](err)
		if !ok || failed.code != 125 || !strings.Contains(failed.text, "in use: "+t.gpus[0]) {
			return fmt.Errorf("the second run ends with %w", err)
		}
		return nil
	}
	if err == nil && slices.Contains(strings.Fields(second), strings.TrimSpace(first)) {
		err = fmt.Errorf("both have %s", first)
	}
	return err
}
