// Command bench measures Gangway and its peers side by side: the same work on
// the same bytes, in turn, in one run, so that a slow or busy machine slows both.
// It prints medians and the median of the ratios of each pair; ratios are what
// to quote. "make bench" runs it; it takes some minutes and some GiB of disk.
//
// It is a program for people, not a test: nothing fails when a target is missed.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
)

// bench is one run of the program.
type bench struct {
	ctx     context.Context // of the whole run
	gangway string          // the program to measure
	rounds  int
	dir     string // scratch
	usr     string // the large tree
	rows    []row

	images string // directory of the built images, one for each kind
	kind   string // of them: torch or small

	boxes *containers // nil until the first part that needs them

	slurmNodes, slurmJobs int // of the queue that Slurm's controller gets
	clusterJobs           int // of a controller that is killed
}

// row is one line of the result.
type row struct{ what, ours, peer, ratio, target string }

func main() {
	log.SetFlags(0)
	if len(os.Args) == 2 && os.Args[1] == agentVerb {
		if err := serveOrders(os.Stdin, os.Stdout); err != nil {
			log.Fatalf("bench %s: %v", agentVerb, err)
		}
		return
	}
	if len(os.Args) > 2 && os.Args[1] == loadVerb {
		if err := load(os.Args[2:]); err != nil {
			log.Fatalf("bench %s: %v", loadVerb, err)
		}
		return
	}
	b := bench{}
	flag.StringVar(&b.gangway, "gangway", "bin/gangway", "the program to measure")
	flag.IntVar(&b.rounds, "rounds", 3, "how often each pair is measured")
	flag.StringVar(&b.dir, "dir", os.TempDir(), "scratch directory; some GiB")
	flag.StringVar(&b.usr, "tree", "/usr", "the large tree to make images of")
	flag.StringVar(&b.kind, "image-kind", "torch", "the image to pull: torch or small (test/images/build.sh)")
	flag.StringVar(&b.images, "images", "", "where built images are kept, in DIR/KIND (default ~/.cache/gangway-bench/images)")
	only := flag.String("only", "", "comma-separated parts: start, write, memory, splice, read, image, run, exec, rootfs, resident, together, hooks, sched, cluster, hosts")
	flag.IntVar(&b.slurmNodes, "slurm-nodes", 1000, "sched: nodes of the cluster that slurmctld gets")
	flag.IntVar(&b.slurmJobs, "slurm-jobs", 10_000, "sched: jobs that wait on it; 0: leave slurmctld out")
	flag.IntVar(&b.clusterJobs, "cluster-jobs", 100_000, "cluster: jobs that a controller has when it is killed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b.ctx = ctx
	if err := b.run(*only); err != nil {
		log.Fatalf("bench: %v", err)
	}
}

func (b *bench) run(only string) error {
	dir, err := os.MkdirTemp(b.dir, "gangway-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	defer func() { _ = b.endContainers() }()
	b.dir = dir
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"start", b.start},
		{"write", b.write},
		{"memory", b.memory},
		{"splice", b.splice},
		{"read", b.read},
		{"image", b.image},
		{"run", b.starts},
		{"exec", b.execs},
		{"rootfs", b.rootfs},
		{"resident", b.resident},
		{"together", b.together},
		{"hooks", b.hooks},
		{"sched", b.sched},
		{"cluster", b.cluster},
		{"hosts", b.hosts},
	} {
		if only != "" && !strings.Contains(","+only+",", ","+part.name+",") {
			continue
		}
		log.Printf("measuring: %s", part.name)
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return b.print()
}

func (b *bench) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tours\tpeer\tratio\ttarget")
	for _, r := range b.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.what, r.ours, r.peer, r.ratio, r.target)
	}
	return w.Flush()
}

func (b *bench) add(what, ours, peer, ratio, target string) {
	b.rows = append(b.rows, row{what, ours, peer, ratio, target})
	log.Printf("  %s: ours %s, peer %s, ratio %s, target %s", what, ours, peer, ratio, target)
}
