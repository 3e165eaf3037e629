// Command iris is a distributed training small enough to read in one go: softmax regression
// on Fisher's iris data, data-parallel, with an all-reduce of the gradients in each epoch.
// It links nothing but the standard library, so an image of it is a few megabytes.
//
//	iris train  --data iris.csv --out DIR       a rank of the training
//	iris sweep  --data iris.csv                 one element of an array: a learning rate
//	iris infer  --data iris.csv --out DIR       one element of an array: a share of the rows
//	iris evaluate --data iris.csv --out DIR     how many of the held-out rows are right
//
// Ranks know what torchrun's are told: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; elements of
// an array, what Slurm tells them: SLURM_ARRAY_TASK_ID, _MIN and _COUNT.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// options are what the command line says.
type options struct {
	data, out string
	epochs    int
	rate      float64
	pause     time.Duration
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "iris:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	verbs := map[string]func(*options, *dataset) error{"train": train, "sweep": sweep, "infer": infer, "evaluate": evaluate}
	if len(args) == 0 || verbs[args[0]] == nil {
		return errors.New("usage: iris train|sweep|infer|evaluate --data FILE [--out DIR] [--epochs N] [--rate R] [--pause D]")
	}
	o := &options{}
	f := flag.NewFlagSet("iris "+args[0], flag.ContinueOnError)
	f.StringVar(&o.data, "data", "iris.csv", "the data: four measures and the species, a row a flower")
	f.StringVar(&o.out, "out", ".", "directory of the checkpoint and of the predictions")
	f.IntVar(&o.epochs, "epochs", 30, "how often all rows are looked at")
	f.Float64Var(&o.rate, "rate", 3, "learning rate")
	f.DurationVar(&o.pause, "pause", 0, "pause after each epoch, so that people can follow")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	d, err := readData(o.data)
	if err != nil {
		return err
	}
	return verbs[args[0]](o, d)
}
