package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// checkpoint is a training as far as it is.
type checkpoint struct {
	Epoch   int     `json:"epoch"` // how many are done
	Weights weights `json:"weights"`
}

func checkpointFile(dir string) string { return filepath.Join(dir, "checkpoint.json") }

// load is the checkpoint of a directory; where there is none the training begins.
func load(dir string) (c checkpoint, err error) {
	b, err := os.ReadFile(checkpointFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}

// save replaces the checkpoint at once: who is killed meanwhile leaves the one before.
func (c *checkpoint) save(dir string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	next := checkpointFile(dir) + ".next"
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return err
	}
	return os.Rename(next, checkpointFile(dir))
}

// train is one rank. Each has a share of the rows and the same weights; what it adds to the
// gradient goes to all.
func train(o *options, d *dataset) error {
	c, err := load(o.out)
	if err != nil {
		return err
	}
	g, err := joinGang()
	if err != nil {
		return err
	}
	node, err := os.Hostname()
	if err != nil {
		return err
	}
	var share []flower
	for i := g.rank; i < len(d.train); i += g.world {
		share = append(share, d.train[i])
	}
	from := "begins"
	if c.Epoch > 0 {
		from = fmt.Sprintf("resumes after epoch %d", c.Epoch)
	}
	fmt.Printf("rank %d of %d on %s has %d of %d rows and %s\n", g.rank, g.world, node, len(share), len(d.train), from)
	var done atomic.Int64 // epochs whose checkpoint is there
	go endBySignal(g.rank, &done)
	for c.Epoch < o.epochs {
		sums := c.Weights.gradient(share)
		if err := g.allReduce(&sums); err != nil {
			return err
		}
		loss := c.Weights.step(&sums, o.rate)
		c.Epoch++
		if g.rank == 0 {
			fmt.Printf("epoch %d of %d: loss %.4f, held-out accuracy %.1f %%\n", c.Epoch, o.epochs, loss, 100*c.Weights.accuracy(d.heldOut))
			if err := c.save(o.out); err != nil {
				return err
			}
		}
		done.Store(int64(c.Epoch))
		time.Sleep(o.pause)
	}
	return nil
}

// endBySignal ends this rank when it is told to, also while it waits for another one that is
// not there any more. The checkpoint of the last epoch is there.
func endBySignal(rank int, done *atomic.Int64) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	<-signals
	fmt.Printf("rank %d ends by a signal; epoch %d is kept\n", rank, done.Load())
	os.Exit(128 + int(syscall.SIGTERM))
}
