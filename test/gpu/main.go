// Command gpu proves on a machine with an NVIDIA GPU what the other tests prove with a
// driver that is none: that programs of an image without a driver use the GPUs that a run
// was given, and no others, as fast as outside. "make test-gpu" runs it.
//
//	go run ./test/gpu -gangway bin/gangway
//
// It makes its image of files of this machine (a static program of its own, a C program
// that adds vectors through CUDA's driver library, and the C library), so that no network
// is needed; nothing is installed. Containers are an ordinary user's also where root runs
// it, unless the machine lets no ordinary user have them; which one is printed.
//
// It exits with 0 if all is well, with 1 if something is not, and with 3 if the machine
// cannot run it; then it prints what is lacking. It keeps no state and starts its programs
// one after the other, but for leases.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == insideVerb {
		os.Exit(inside(os.Args[2:]))
	}
	t := &test{}
	flag.StringVar(&t.gangway, "gangway", "bin/gangway", "the program to test")
	flag.IntVar(&t.rounds, "rounds", 7, "how often speed is measured inside and outside")
	flag.IntVar(&t.starts, "starts", 20, "how often a start is measured with and without GPUs")
	flag.IntVar(&t.elements, "elements", 1<<26, "of the vectors whose addition is measured; 256 MiB each do not fit into a GPU's caches")
	flag.IntVar(&t.additions, "additions", 300, "how many of them are one measurement")
	flag.Float64Var(&t.apart, "apart", 0.01, "how far apart a program may be inside and outside, as a fraction")
	flag.Float64Var(&t.ratio, "ratio", 1.5, "how much longer a start with a GPU may take")
	flag.IntVar(&t.uid, "uid", ordinary, "whose containers they are, where root runs it; root's if this user may have none")
	flag.StringVar(&t.cc, "cc", "", "the C compiler (default cc or gcc)")
	flag.StringVar(&t.nvidiaRoot, "nvidia-root", "", "where the driver's files are, if not in the usual places")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := t.main(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test-gpu:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// test is one run of the program.
type test struct {
	ctx        context.Context
	gangway    string
	cc         string
	nvidiaRoot string
	rounds     int
	starts     int
	elements   int
	additions  int
	apart      float64
	ratio      float64

	dir    string // scratch, which others may enter
	uid    int    // of the user who has the containers
	image  string
	smi    string // nvidia-smi of the machine
	gpus   []string
	failed int
}

const (
	codeFailed = 1
	codeLacks  = 3
)

func (t *test) main(ctx context.Context) (code int, err error) {
	t.ctx = ctx
	if lacks := t.lacking(); len(lacks) > 0 {
		return codeLacks, lackError(lacks)
	}
	if t.dir, err = os.MkdirTemp("", "gangway-gpu-"); err != nil {
		return codeFailed, err
	}
	defer func() { _ = os.RemoveAll(t.dir) }()
	if err := t.prepare(); err != nil {
		return codeFailed, err
	}
	if lacks := t.unfit(); len(lacks) > 0 {
		return codeLacks, lackError(lacks)
	}
	t.checks()
	t.speed()
	if t.failed > 0 {
		return codeFailed, fmt.Errorf("%d checks failed", t.failed)
	}
	fmt.Println("test-gpu: all is well")
	return 0, nil
}

// lackError is for people.
func lackError(lacks []string) error {
	return fmt.Errorf("this machine cannot run it; it lacks\n  - %s", strings.Join(lacks, "\n  - "))
}

// prepare makes what the test needs, in a directory of its own.
func (t *test) prepare() error {
	if err := os.Chmod(t.dir, 0o755); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		t.uid = os.Geteuid()
	}
	for _, name := range []string{"home", "run", "tmp"} {
		path := filepath.Join(t.dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		if err := os.Chown(path, t.uid, -1); err != nil {
			return err
		}
	}
	for name, from := range map[string]string{"gangway": t.gangway, "gputest": "/proc/self/exe"} {
		b, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("read the program to test (make build): %w", err)
		}
		if err := os.WriteFile(filepath.Join(t.dir, name), b, 0o755); err != nil {
			return err
		}
	}
	t.gangway = filepath.Join(t.dir, "gangway")
	if err := t.compile(); err != nil {
		return err
	}
	return t.makeImage()
}

// check prints how a check went.
func (t *test) check(what string, err error) bool {
	if err != nil {
		t.failed++
		fmt.Printf("FAIL  %s\n      %s\n", what, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n      "))
		return false
	}
	fmt.Printf("ok    %s\n", what)
	return true
}
