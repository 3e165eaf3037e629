package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// checkTarget says before anything runs why the container could not be saved at its end.
func (s *step) checkTarget() error {
	if s.SaveTo == "" {
		return nil
	}
	dir := filepath.Dir(s.SaveTo)
	refuse := func(err error, hint string) error {
		return &fault.Error{What: fmt.Errorf("save container to %s: %w", s.SaveTo, err), Hint: hint}
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse(err, "make the directory first: mkdir -p "+dir)
	case err != nil:
		return refuse(err, "")
	case !st.IsDir():
		return refuse(fmt.Errorf("%s: %w", dir, syscall.ENOTDIR), "name a file in a directory")
	}
	if st, err := os.Lstat(s.SaveTo); err == nil && !st.Mode().IsRegular() {
		return refuse(errors.New("it is there and is no regular file"), "give another name")
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return refuse(fmt.Errorf("%s: %w", dir, err), "name a file in a directory that you may write to")
	}
	return nil
}

// checkBase refuses to save over what the container is made of: other containers may be
// made of it as well.
func (s *step) checkBase() error {
	if s.SaveTo == "" || s.image.Digest != "" {
		return nil
	}
	target, err := os.Stat(s.SaveTo)
	if err != nil {
		return nil // it is made anew
	}
	base, err := os.Stat(s.image.Name)
	if err != nil || !os.SameFile(target, base) {
		return nil
	}
	return &fault.Error{What: fmt.Errorf("save container to %s: that is the image it is made of", s.SaveTo), Hint: "give another name"}
}

// Written is what a container wrote over its image.
type Written struct {
	Upper       string // the overlay's directory; "" where nothing could be written
	FuseOverlay bool   // see Named
}

// save writes the container to a file when its command has ended, whatever its status
// was: what a failed command left behind is what one wants to look at. A signal that
// ended the command does not end this; the next one does.
func (s *step) save(ctx context.Context) error {
	if s.SaveTo == "" || !s.complete {
		return nil
	}
	if s.told || ctx.Err() != nil {
		next, stop := signal.NotifyContext(context.WithoutCancel(ctx), slices.DeleteFunc([]os.Signal{syscall.SIGINT, syscall.SIGTERM}, signal.Ignored)...)
		defer stop()
		ctx = next
	}
	// Nobody may join it any more, and none of its processes write.
	if err := os.Remove(s.dir.file(stateName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.container.Close(); err != nil {
		return err
	}
	w := Written{Upper: s.saved, FuseOverlay: s.root.rung == rungFuseOverlay || s.named != nil && s.named.FuseOverlay}
	if err := s.Save(ctx, s.image, w, s.SaveTo); err != nil {
		return fmt.Errorf("save container: %w", err)
	}
	s.phase("save", s.SaveTo)
	return nil
}
