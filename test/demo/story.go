package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// training is what the demo trains: an example, and what it gives its script.
type training struct {
	example, image string
	short, long    []string // arguments: to be done soon, and to have time to lose a node
	loseAfter      int      // epochs
}

// quick is the small one. Its image has nothing but a shell and a program.
var quick = training{
	example: "iris", image: "demo/iris:1", loseAfter: 6,
	short: []string{"--epochs", "15"}, long: []string{"--epochs", "20", "--pause", "150ms"},
}

// full is PyTorch's, on pictures of digits.
var full = training{
	example: "digits", image: "demo/torch:1", loseAfter: 3,
	short: []string{"--epochs", "10"}, long: []string{"--epochs", "10"},
}

// story is all of it, in order.
func (d *demo) story(ctx context.Context) error {
	t := quick
	if !d.quick {
		t = full
	}
	if err := d.cluster(ctx); err != nil {
		return err
	}
	if err := d.copyExamples("iris", t.example); err != nil {
		return err
	}
	if !d.quick {
		if err := d.digits(ctx); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context, *training) error{d.cold, d.warm, d.lost, d.array, d.inference} {
		if err := step(ctx, &t); err != nil {
			return err
		}
	}
	return nil
}

// cluster builds the images, starts registry and cluster, and pushes the images.
func (d *demo) cluster(ctx context.Context) error {
	layouts := map[string]string{} // by their names in the registry
	if !d.quick {
		err := d.timed("build the torch image from Debian's packages", "8 layers, kept for the next time", func() (err error) {
			layouts[full.image], err = d.torchImage(ctx)
			return err
		})
		if err != nil {
			return err
		}
	}
	err := d.timed("build the small image", "a static program and busybox, one layer", func() (err error) {
		layouts[quick.image], err = d.smallImage(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		d.place = &hosts{d: d}
	} else {
		d.place = &loopback{d: d}
	}
	err = d.timed("start registry and cluster", d.place.words(), func() error {
		if err := d.links(ctx); err != nil {
			return err
		}
		if err := d.place.start(ctx); err != nil {
			return err
		}
		d.env = d.environ(d.place.environ()...)
		return d.types(ctx, "sinfo")
	})
	if err != nil {
		return err
	}
	return d.timed("push what was built to "+d.place.registry(), "skopeo, digests as they are", func() error {
		for _, name := range slices.Sorted(maps.Keys(layouts)) {
			if err := d.push(ctx, layouts[name], name); err != nil {
				return err
			}
		}
		return nil
	})
}

// links makes the names of Slurm's commands.
func (d *demo) links(ctx context.Context) error {
	dir := filepath.Join(d.dir, "slurm")
	d.env = d.environ("PATH=" + dir + ":" + os.Getenv("PATH"))
	_, err := d.asks(ctx, "gangway", "slurm", "install", dir)
	return err
}

// copyExamples gives the user examples of his own.
func (d *demo) copyExamples(names ...string) error {
	for _, name := range names {
		files, err := filepath.Glob(filepath.Join(d.examples, name, "*"))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(d.work(name), 0o700); err != nil {
			return err
		}
		for _, path := range files {
			if filepath.Ext(path) == ".go" {
				continue
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(d.work(name), filepath.Base(path)), b, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// with is the environment in which the user types what follows.
func (d *demo) with(t *training, more ...string) {
	d.env = d.environ(append(d.place.environ(), append(more, "IMAGE="+strings.Replace(d.place.registry()+"/"+t.image, "/", "#", 1))...)...)
}

// train submits the training, and shows its queue, its output and what it used. hook sees each
// line of output.
func (d *demo) train(ctx context.Context, t *training, args []string, hook func(line string), on func(*api.Job)) (job.ID, error) {
	d.say.note("$ export IMAGE=%s OUT=%s", valueOf(d.env, "IMAGE"), valueOf(d.env, "OUT"))
	id, err := d.submit(ctx, d.work(t.example), append([]string{"train.sbatch"}, args...)...)
	if err != nil {
		return 0, err
	}
	if err := d.types(ctx, "squeue"); err != nil {
		return 0, err
	}
	logs := make(chan error, 1)
	go func() { logs <- d.logs(ctx, id, hook) }()
	if err := errors.Join(d.follow(ctx, id, true, on), <-logs); err != nil {
		return 0, err
	}
	return id, d.types(ctx, "sacct", "-D", "-j", id.String(), "-o", "JobID,JobName%12,State,Elapsed,TotalCPU,MaxRSS,NodeList%12")
}

func (d *demo) cold(ctx context.Context, t *training) error {
	return d.timed("train on 4 nodes, nothing is there yet", "the image is pulled once for all nodes", func() error {
		d.with(t, "OUT=out")
		_, err := d.train(ctx, t, t.short, nil, nil)
		return err
	})
}

func (d *demo) warm(ctx context.Context, t *training) error {
	return d.timed("the same again", "nothing is pulled or unpacked", func() error {
		d.with(t, "OUT=again")
		_, err := d.train(ctx, t, t.short, nil, nil)
		return err
	})
}

// lost takes a node away while the training runs. The job keeps its number, has the spare node,
// and goes on from its checkpoint.
func (d *demo) lost(ctx context.Context, t *training) error {
	return d.timed("a node is lost while the job runs", "found after "+d.lostAfter.String()+", requeued with the same number", func() error {
		d.with(t, "OUT=lost")
		var (
			mu            sync.Mutex // what is read and what is watched come in any order
			lost, resumed = "", false
			last          api.Job
			cut           error
		)
		epoch := regexp.MustCompile(fmt.Sprintf(`epoch %d of`, t.loseAfter))
		id, err := d.train(ctx, t, t.long, func(line string) {
			mu.Lock()
			defer mu.Unlock()
			resumed = resumed || strings.Contains(line, "resumes after epoch")
			if lost == "" && epoch.MatchString(line) && len(last.NodeList) > 0 {
				lost = last.NodeList[len(last.NodeList)-1]
				d.say.line("   ! ", "node "+lost+" loses its power")
				cut = d.place.lose(ctx, lost)
			}
		}, func(j *api.Job) {
			mu.Lock()
			defer mu.Unlock()
			last = *j
		})
		switch {
		case errors.Join(err, cut) != nil:
			return errors.Join(cut, err)
		case lost == "":
			return errors.New("the job was over before a node was lost")
		case last.Restarts < 1 || slices.Contains(last.NodeList, lost) || !resumed:
			return fmt.Errorf("job %s ended on %v after %d restarts without %s, resumed: %t", id, last.NodeList, last.Restarts, lost, resumed)
		}
		if err := d.types(ctx, "sinfo"); err != nil {
			return err
		}
		d.say.line("   ! ", "node "+lost+" has power again")
		return d.place.back(ctx, lost)
	})
}

func (d *demo) array(ctx context.Context, t *training) error {
	return d.timed("an array of 100 elements", "each a container of its own", func() error {
		d.with(&quick)
		dir := d.work(quick.example)
		id, err := d.submit(ctx, dir, "sweep.sbatch")
		if err != nil {
			return err
		}
		if err := errors.Join(d.types(ctx, "squeue"), d.follow(ctx, id, false, nil)); err != nil {
			return err
		}
		outs, err := filepath.Glob(filepath.Join(dir, "sweep-*.out"))
		if err != nil {
			return err
		}
		if len(outs) != 100 {
			return fmt.Errorf("%d of 100 elements have written their output", len(outs))
		}
		d.say.note("100 outputs, sweep-%s_0.out and on", id)
		return nil
	})
}

func (d *demo) inference(ctx context.Context, t *training) error {
	return d.timed("8 elements of inference, and an evaluation after them", "two submits, a dependency", func() error {
		d.with(t, "OUT=out")
		dir := d.work(t.example)
		infer, err := d.submit(ctx, dir, "infer.sbatch")
		if err != nil {
			return err
		}
		evaluate, err := d.submit(ctx, dir, "--dependency=afterok:"+infer.String(), "evaluate.sbatch")
		if err != nil {
			return err
		}
		if err := errors.Join(d.types(ctx, "squeue"), d.follow(ctx, infer, false, nil), d.follow(ctx, evaluate, true, nil)); err != nil {
			return err
		}
		return d.types(ctx, "gangway", "logs", evaluate.String())
	})
}

// logs shows the output of a job until it ends.
func (d *demo) logs(ctx context.Context, id job.ID, hook func(string)) error {
	cmd := d.user(ctx, d.dir, "gangway", "logs", "-f", id.String())
	d.say.typed(append([]string{"gangway"}, cmd.Args[1:]...))
	return d.printed(cmd, hook)
}

// summary is what all took, on one screen, and what to type to look around.
func (d *demo) summary(ctx context.Context, stay bool) error {
	d.say.title("summary")
	for _, t := range d.times {
		d.say.note("%7.1f s  %-52s %s", t.took.Seconds(), t.what, t.cost)
	}
	if !stay {
		return nil
	}
	d.say.note("")
	d.say.note("The cluster runs until you press Enter or Ctrl-C. Look around from another terminal:")
	d.say.note("  cd %s", d.dir)
	d.say.note("  export PATH=%s:%s:$PATH %s", filepath.Join(d.dir, "slurm"), d.bin, strings.Join(d.place.environ(), " "))
	d.say.note("  sinfo; squeue; sacct; gangway show job 1; gangway logs 3; srun -N5 hostname")
	pressed := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // its end counts, too
		close(pressed)
	}()
	select {
	case <-pressed:
	case <-ctx.Done():
	}
	return nil
}
