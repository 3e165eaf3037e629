package main

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"
)

// speed compares starts, and programs inside and outside.
func (t *test) speed() {
	with, without, err := t.startTimes()
	if err == nil {
		ratio := ratioOf(with, without)
		fmt.Printf("      a start takes %.1f ms with a GPU and %.1f ms without, ratio %.2f (medians of %d)\n", millis(with), millis(without), ratio, t.starts)
		if ratio > t.ratio {
			err = fmt.Errorf("ratio %.2f, more than %.1f", ratio, t.ratio)
		}
	}
	t.check("the hook's part of a start", err)
	t.check("a GPU program is as fast inside as outside", t.programSpeed())
}

func (t *test) startTimes() (with, without []time.Duration, err error) {
	for round := range t.starts + 1 {
		for _, c := range []struct {
			to      *[]time.Duration
			options []string
		}{{&without, nil}, {&with, []string{"--gpus=" + t.gpus[0]}}} {
			began := time.Now()
			if _, err := t.run(c.options, "/gputest", insideVerb, "true"); err != nil {
				return nil, nil, err
			}
			if round > 0 {
				*c.to = append(*c.to, time.Since(began))
			}
		}
	}
	return with, without, nil
}

// programSpeed compares the times of an addition on the same GPU, in turn.
func (t *test) programSpeed() error {
	gpu := t.gpus[0]
	times := map[string][]float64{}
	for range t.rounds {
		for name, c := range map[string]struct {
			where   func(...string) (string, error)
			program string
		}{
			"inside": {func(args ...string) (string, error) { return t.run([]string{"--gpus=" + gpu}, args...) }, "/vectoradd"},
			"outside": {func(args ...string) (string, error) {
				cmd := t.command(args[0], args[1:]...)
				cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+gpu)
				return output(cmd)
			}, filepath.Join(t.dir, "vectoradd")},
		} {
			a, err := t.vectors(c.where, c.program, t.elements, t.additions)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if a.uuid != gpu {
				return fmt.Errorf("%s the GPU is %s, not %s", name, a.uuid, gpu)
			}
			times[name] = append(times[name], a.micros)
		}
	}
	in, out := median(times["inside"]), median(times["outside"])
	apart := math.Abs(in/out - 1)
	fmt.Printf("      an addition of %d elements takes %.2f us inside and %.2f us outside, %.2f %% apart (medians of %d)\n", t.elements, in, out, 100*apart, t.rounds)
	if apart > t.apart {
		return fmt.Errorf("%.2f %% apart, more than %.0f %%; inside %.2f, outside %.2f", 100*apart, 100*t.apart, times["inside"], times["outside"])
	}
	return nil
}

func median[T ~int64 | ~float64](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func millis(list []time.Duration) float64 { return float64(median(list)) / float64(time.Millisecond) }

// ratioOf is the median of the ratios of pairs.
func ratioOf(a, b []time.Duration) float64 {
	var ratios []float64
	for i := range a {
		ratios = append(ratios, float64(a[i])/float64(b[i]))
	}
	return median(ratios)
}
