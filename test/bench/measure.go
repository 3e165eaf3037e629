package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// sample is what one run of a program cost.
type sample struct {
	wall, cpu time.Duration
	peak      int64 // bytes of resident memory of the largest process, at most
	// written is what it and the processes it waited for dirtied in the page cache of
	// file systems with a disk, in bytes: what is written back, unless it is deleted
	// before. Metadata of the file system is not in it.
	written int64
}

// command runs a program and returns what it cost. Its output is thrown away.
func (b *bench) command(args ...string) (sample, error) {
	return measure(exec.CommandContext(b.ctx, args[0], args[1:]...))
}

func measure(cmd *exec.Cmd) (sample, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return sample{}, err
	}
	defer null.Close()
	cmd.Stdout = null
	start := time.Now()
	err = cmd.Run()
	wall := time.Since(start)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return sample{
		wall: wall,
		cpu:  cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		peak: ru.Maxrss << 10,
		// The kernel counts in blocks of 512 bytes here, whatever the disk's are.
		written: ru.Oublock << 9,
	}, nil
}

// pairs measures ours and the peer in turn, after a round that is not counted.
func (b *bench) pairs(ours, peer func() (sample, error)) (us, them []sample, err error) {
	for i := range b.rounds + 1 {
		u, err := ours()
		if err != nil {
			return nil, nil, err
		}
		t, err := peer()
		if err != nil {
			return nil, nil, err
		}
		if i > 0 {
			us, them = append(us, u), append(them, t)
		}
	}
	return us, them, nil
}

func median[T ~int64 | ~float64](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func column[T any](list []sample, f func(sample) T) []T {
	out := make([]T, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}

func medianWall(list []sample) time.Duration {
	return time.Duration(median(column(list, func(s sample) int64 { return int64(s.wall) })))
}

func medianCPU(list []sample) time.Duration {
	return time.Duration(median(column(list, func(s sample) int64 { return int64(s.cpu) })))
}

func peak(list []sample) int64 {
	return slices.Max(column(list, func(s sample) int64 { return s.peak }))
}

// ratio is the median of the pairs' ratios of wall time, a over b.
func ratio(a, b []sample) float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = float64(a[i].wall) / float64(b[i].wall)
	}
	return median(r)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
func mib(n int64) string             { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
