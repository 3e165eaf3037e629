package step

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// probeProgram is where the probe's container has this program.
const probeProgram = "/gangway"

// errProbe says that something could not be done in the probe's container.
var errProbe = errors.New("a writable container cannot be used")

// tryWritable runs the probe on a rung. What a container lacks here besides, the next one
// says; and this one needs no seal, since only this program itself runs in it.
func tryWritable(ctx context.Context, o Options, rung string) (err error) {
	host, err := readHost(nil, o.Getenv)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	s := &step{ranks: newRanks(), Options: Options{
		Dirs: o.Dirs, Log: slog.New(slog.DiscardHandler), Getenv: o.Getenv, Unsealed: true,
		Request: spec.Request{
			Command: append([]string{probeProgram}, o.Probe...), Writable: true, Export: "NONE",
			Mounts: []spec.Mount{{Type: spec.Bind, Source: program, Target: probeProgram, Options: []string{"bind", "ro"}, Kind: spec.RegularFile}},
		},
		RootSize: 16 << 20,
	}, host: host, image: &Image{Name: "probe", base: probeTree}}
	defer s.close()
	said, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	s.Stdout, s.Stderr = write, write
	err = s.runProbe(ctx, rung)
	_ = write.Close() // a pipe's other end
	text, rerr := io.ReadAll(io.LimitReader(said, 4096))
	if _, why, found := strings.Cut(string(bytes.TrimSpace(text)), "error: "); found && err != nil {
		why, _, _ = strings.Cut(why, "\n")
		return fmt.Errorf("%w: %s", errProbe, why)
	}
	return errors.Join(err, rerr)
}

func (s *step) runProbe(ctx context.Context, rung string) error {
	var err error
	if s.dir, err = newRunDir(ctx, s.Dirs[0]); err != nil {
		return err
	}
	s.onClose(s.dir.remove)
	c, err := s.configFor(ctx, rung)
	if err != nil {
		return err
	}
	if err := s.try(ctx, c); err != nil {
		return err
	}
	s.onClose(s.container.Close)
	return s.run(ctx)
}

// probeTree is an image of a file, a program, and a directory with a file in it.
func probeTree() (*rootfs.Tree, error) {
	ix, err := emptyIndex()
	if err != nil {
		return nil, err
	}
	t := rootfs.New(ix, nil)
	for _, f := range []spec.File{
		{Path: probeFile, Content: []byte(probeText), Mode: 0o644},
		{Path: probeExe, Content: exitZero(), Mode: 0o755},
	} {
		if _, err := t.AddFile(f.Path, f.Content, f.Mode); err != nil {
			return nil, err
		}
	}
	_, err = t.Mountpoint(probeSub, true)
	return t, err
}
