package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// element is which one of an array this is, from 0, and of how many.
func element() (i, n int, err error) {
	var numbers [3]int
	for k, name := range []string{"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"} {
		if numbers[k], err = strconv.Atoi(os.Getenv(name)); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	return numbers[0] - numbers[1], numbers[2], nil
}

// sweep trains alone with a learning rate of its own, and says how good that is.
func sweep(o *options, d *dataset) error {
	i, n, err := element()
	if err != nil {
		return err
	}
	rate := 0.001 * math.Pow(10_000, float64(i)/float64(max(1, n-1)))
	var w weights
	loss := 0.0
	for range o.epochs {
		g := w.gradient(d.train)
		loss = w.step(&g, rate)
	}
	fmt.Printf("rate %.4f: loss %.4f, held-out accuracy %.1f %%\n", rate, loss, 100*w.accuracy(d.heldOut))
	return nil
}

// infer classifies a share of the held-out rows by the trained model.
func infer(o *options, d *dataset) error {
	i, n, err := element()
	if err != nil {
		return err
	}
	c, err := load(o.out)
	if err != nil {
		return err
	}
	if c.Epoch == 0 {
		return fmt.Errorf("there is no model in %s: train first", o.out)
	}
	f, err := os.Create(filepath.Join(o.out, fmt.Sprintf("predictions-%d.csv", i)))
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	rows := 0
	for row := i; row < len(d.heldOut); row += n {
		if err := w.Write([]string{strconv.Itoa(row), strconv.Itoa(c.Weights.species(&d.heldOut[row].x))}); err != nil {
			return err
		}
		rows++
	}
	w.Flush()
	fmt.Printf("share %d of %d: %d rows\n", i, n, rows)
	return w.Error()
}

// evaluate compares what all shares say with what is so.
func evaluate(o *options, d *dataset) error {
	shares, err := filepath.Glob(filepath.Join(o.out, "predictions-*.csv"))
	if err != nil {
		return err
	}
	said := map[int]int{}
	for _, path := range shares {
		if err := readShare(path, said); err != nil {
			return err
		}
	}
	right := 0
	for row, f := range d.heldOut {
		species, ok := said[row]
		if !ok {
			return fmt.Errorf("row %d is in none of %d shares", row, len(shares))
		}
		if species == f.species {
			right++
		}
	}
	fmt.Printf("%d of %d held-out rows are right: %.1f %%\n", right, len(d.heldOut), 100*float64(right)/float64(len(d.heldOut)))
	return nil
}

func readShare(path string, said map[int]int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, cells := range rows {
		row, err := strconv.Atoi(cells[0])
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if said[row], err = strconv.Atoi(cells[1]); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
	}
	return nil
}
