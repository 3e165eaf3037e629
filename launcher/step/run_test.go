package step

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/usertest"
	"github.com/gangway-hpc/gangway/runtime/spec"
	"github.com/gangway-hpc/gangway/squashfs"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case superviseArg:
			os.Exit(superviseMain(os.Args[2]))
		case rankArg:
			os.Exit(rankMain(os.Args[2:]))
		}
	}
	os.Exit(usertest.Main(m))
}

// options are those of a run in an image that has one program, /exit, which exits with
// status 0.
func options(tb testing.TB, args ...string) Options {
	tb.Helper()
	dir := tb.TempDir()
	file := filepath.Join(dir, "image.sqsh")
	w, err := squashfs.CreateNew(file, squashfs.WriterOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Close()
	program := string(exitZero())
	if err := w.Add(squashfs.Entry{Path: "exit", Mode: 0o100755, Size: int64(len(program))}, strings.NewReader(program)); err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Commit(tb.Context(), nil); err != nil {
		tb.Fatal(err)
	}
	o := imageOptions(file, dir)
	o.Request.Command = args
	return o
}

// imageOptions are those of a run in an image that is a file, with all else in a directory.
func imageOptions(file, dir string) Options {
	return Options{
		Request: spec.Request{Export: "NONE"},
		Image: func(ctx context.Context, _ *Named) (*Image, error) {
			store, err := image.Open(image.Options{Dir: filepath.Join(dir, "store")})
			if err != nil {
				return nil, err
			}
			o, err := store.OpenFile(ctx, file, squashfs.ReaderOptions{})
			if err != nil {
				return nil, err
			}
			return &Image{Name: file, Opened: o, Close: o.Close}, nil
		},
		Dirs: []string{filepath.Join(dir, "run")}, Scratch: filepath.Join(dir, "scratch"), Containers: filepath.Join(dir, "containers"),
		Getenv: os.Getenv, Log: slog.New(slog.DiscardHandler),
	}
}

// TestRun: a command runs, and its status comes back; what cannot run is named.
func TestRun(t *testing.T) {
	var phases []string
	o := options(t, "/exit")
	o.Phase = func(name string, _ time.Duration, rung string) {
		phases = append(phases, strings.TrimSpace(name+" "+rung))
	}
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(phases[1:], ", "); got != "mount fuse, prepare processes of its own, start, command, end" {
		t.Errorf("phases: %s", got)
	}
	o.Request.Command = []string{"/missing"}
	if err := Run(t.Context(), o); fault.Code(err) != fault.CodeNotFound {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(o.Dirs[0], "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %s, %v", left, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("nobody wants it")
	cancel(why)
	if err := Run(ctx, o); err == nil {
		t.Error("a cancelled run succeeded")
	}
}

// BenchmarkRun is a whole run from a process that is there already.
func BenchmarkRun(b *testing.B) {
	o := options(b, "/exit")
	for b.Loop() {
		if err := Run(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
}
