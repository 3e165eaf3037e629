package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// parts are what is done inside a mount, by name.
func parts() map[string]func(ctx context.Context, dir string, args []string) error {
	return map[string]func(ctx context.Context, dir string, args []string) error{
		"show":    func(_ context.Context, dir string, _ []string) error { return show(os.Stdout, dir) },
		"read":    readInside,
		"list":    listInside,
		"missing": missingInside,
		"damage":  damageInside,
		"xattrs":  xattrsInside,
		"noxattr": noXattrInside,
		"closed":  closedInside,
		"die":     dieInside,
		"bench":   benchInside,
		"fault":   faultInside,
		"nothing": func(context.Context, string, []string) error { return nil },
	}
}

// readInside reads files, given as name and size, in many ways at once.
func readInside(ctx context.Context, dir string, args []string) error {
	group, _ := errgroup.WithContext(ctx)
	for i := 0; i < len(args); i += 2 {
		size, err := strconv.ParseInt(args[i+1], 10, 64)
		if err != nil {
			return err
		}
		path, want := filepath.Join(dir, args[i]), content(args[i], size)
		for k := range 4 {
			group.Go(func() error {
				if err := readOne(path, want, k); err != nil {
					return fmt.Errorf("%s, way %d: %w", path, k, err)
				}
				return nil
			})
		}
	}
	return group.Wait()
}

var errDiffers = errors.New("what is read differs")

func readOne(path string, want []byte, way int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	switch way {
	case 0: // from front to back
		got, err := io.ReadAll(f)
		if err == nil && !bytes.Equal(got, want) {
			err = errDiffers
		}
		return err
	case 1: // mapped
		if len(want) == 0 {
			return nil
		}
		got, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return errDiffers
		}
		return unix.Munmap(got)
	case 2: // past the page cache
		direct, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // the kernel has none
		}
		if err != nil {
			return err
		}
		defer unix.Close(direct)
		return readRandom(direct, want)
	default:
		return readRandom(int(f.Fd()), want)
	}
}

func readRandom(fd int, want []byte) error {
	const unit = 4096
	buf := make([]byte, 40*unit)
	for range 40 {
		off := rand.IntN(len(want)/unit+2) * unit
		n, err := unix.Pread(fd, buf[:(1+rand.IntN(40))*unit], int64(off))
		if err != nil {
			return err
		}
		off = min(off, len(want))
		if n == 0 && off < len(want) || !bytes.Equal(buf[:n], want[off:off+n]) {
			return fmt.Errorf("%w: %d bytes at %d of %d", errDiffers, n, off, len(want))
		}
	}
	return nil
}

// listInside lists a directory with a number of files, in small steps too.
func listInside(_ context.Context, dir string, args []string) error {
	want, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for _, step := range []int{-1, 1000} {
		f, err := os.Open(filepath.Join(dir, args[0]))
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for err == nil {
			var names []string
			names, err = f.Readdirnames(step)
			for _, name := range names {
				seen[name] = true
			}
			if step < 0 {
				break
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err != nil && err != io.EOF || len(seen) != want {
			return fmt.Errorf("%d names, want %d: %w", len(seen), want, err)
		}
	}
	return nil
}

// missingInside looks for what is not there, again and again.
func missingInside(_ context.Context, dir string, _ []string) error {
	for range 3 {
		for i := range 500 {
			if _, err := os.Lstat(fmt.Sprintf("%s/usr/nope%d", dir, i)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("what is missing: %w", err)
			}
		}
	}
	if err := os.WriteFile(dir+"/usr/new", nil, 0o644); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("write: %w, want EROFS", err)
	}
	return nil
}

// damageInside reads a file whose content is damaged, again and again, and a good one.
func damageInside(_ context.Context, dir string, _ []string) error {
	for range 3 {
		if _, err := os.ReadFile(dir + "/bad"); !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("read what is damaged: %w, want EIO", err)
		}
	}
	_, err := os.ReadFile(dir + "/good")
	return err
}

func xattrsInside(_ context.Context, dir string, _ []string) error {
	buf := make([]byte, 100)
	n, err := unix.Listxattr(dir+"/has", buf)
	if err != nil || string(buf[:n]) != "user.name\x00" {
		return fmt.Errorf("the list is %q, %w", buf[:max(n, 0)], err)
	}
	if n, err = unix.Getxattr(dir+"/has", "user.name", buf); err != nil || string(buf[:n]) != "value" {
		return fmt.Errorf("the value is %q, %w", buf[:max(n, 0)], err)
	}
	if _, err = unix.Getxattr(dir+"/has", "user.name", buf[:2]); !errors.Is(err, unix.ERANGE) {
		return fmt.Errorf("into a small buffer: %w", err)
	}
	for _, name := range []string{"security.capability", "user.nope", "user.overlay.opaque"} {
		if _, err = unix.Getxattr(dir+"/has", name, buf); !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("%s: %w, want ENODATA", name, err)
		}
	}
	return nil
}

// noXattrInside asks where nothing has extended attributes.
func noXattrInside(_ context.Context, dir string, _ []string) error {
	if _, err := unix.Getxattr(dir+"/a", "user.name", nil); !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("get: %w, want EOPNOTSUPP", err)
	}
	// To list is allowed where nothing can be had.
	if n, err := unix.Listxattr(dir+"/a", make([]byte, 100)); n > 0 {
		return fmt.Errorf("list: %d bytes, %w", n, err)
	}
	return nil
}

// closedInside uses the mount, says so, and then finds it broken.
func closedInside(_ context.Context, dir string, _ []string) error {
	if _, err := os.ReadFile(dir + "/a"); err != nil {
		return err
	}
	fmt.Println("used")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != io.EOF {
		return err
	}
	if _, err := os.Lstat(dir + "/b"); !errors.Is(err, syscall.ENOTCONN) {
		return fmt.Errorf("after the server's end: %w, want ENOTCONN", err)
	}
	return nil
}

// dieInside uses the mount until that fails, and says how.
func dieInside(ctx context.Context, dir string, _ []string) error {
	fmt.Println("begun")
	for i := 0; ctx.Err() == nil; i++ {
		_, err := os.Lstat(fmt.Sprintf("%s/nope%d", dir, i))
		underWay := errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EIO)
		if !errors.Is(err, os.ErrNotExist) && !underWay {
			_, err = fmt.Fprintln(os.NewFile(4, "listener"), err)
			return err
		}
	}
	return ctx.Err()
}
