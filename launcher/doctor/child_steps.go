package doctor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the process in which a probe is tried.
type inside struct {
	in       io.Reader
	out      io.Writer
	uid, gid string
	dir      string // is mounted over
}

// RunProbe is what the hidden verb does: it tries one thing in the process that it is
// called in, and writes each step to out. args are what [Examine] gave.
func RunProbe(args []string, in io.Reader, out io.Writer) error {
	probes := map[string]func(*inside) error{
		"hello":    func(p *inside) error { return p.do("run this program", func() error { return nil }) },
		"wait":     (*inside).wait,
		"mounts":   (*inside).mounts,
		"overlay":  (*inside).overlay,
		"xattr":    (*inside).xattr,
		"proc":     (*inside).proc,
		"sys":      (*inside).sys,
		"fuse":     (*inside).fuse,
		"opentree": (*inside).openTree,
		"setattr":  (*inside).setattr,
	}
	if len(args) != 4 || probes[args[0]] == nil {
		return errors.New("run a probe: this is for gangway doctor only")
	}
	for _, id := range args[1:3] {
		if _, err := strconv.ParseUint(id, 10, 32); err != nil {
			return fmt.Errorf("run a probe: %w", err)
		}
	}
	p := &inside{in: in, out: out, uid: args[1], gid: args[2], dir: args[3]}
	err := probes[args[0]](p)
	if _, told := errors.AsType[*stepError](err); told {
		return nil // it is in out
	}
	return err
}

// stepError is the end of a probe by a step that did not succeed.
type stepError struct{ error }

// Unwrap returns why.
func (e *stepError) Unwrap() error { return e.error }

// do does one step.
func (p *inside) do(what string, f func() error) error {
	enc := json.NewEncoder(p.out)
	if err := enc.Encode(step{What: what}); err != nil {
		return err
	}
	s := step{What: what, Done: true}
	err := f()
	if err != nil {
		s.Error = err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			s.Errno, s.Error = errno, errno.Error()
		}
	}
	if err := enc.Encode(s); err != nil {
		return err
	}
	if err != nil {
		return &stepError{err}
	}
	return nil
}

// all does steps up to the first that does not succeed.
func (p *inside) all(steps ...namedStep) error {
	for _, s := range steps {
		if err := p.do(s.what, s.f); err != nil {
			return err
		}
	}
	return nil
}

type namedStep struct {
	what string
	f    func() error
}

func write(file, text string) func() error {
	return func() error {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return errors.Join(err, f.Close())
	}
}

// wait stays until stdin ends.
func (p *inside) wait() error {
	_, err := io.Copy(io.Discard, p.in)
	return err
}

// enter does what every container begins with.
func (p *inside) enter() error {
	return p.all(
		namedStep{"write deny to /proc/self/setgroups", write("/proc/self/setgroups", "deny")},
		namedStep{"write /proc/self/uid_map", write("/proc/self/uid_map", p.uid+" "+p.uid+" 1\n")},
		namedStep{"write /proc/self/gid_map", write("/proc/self/gid_map", p.gid+" "+p.gid+" 1\n")},
		namedStep{"make all mounts slaves", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") }},
		namedStep{"mount tmpfs on " + p.dir, func() error {
			return unix.Mount("tmpfs", p.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=755")
		}},
	)
}

// path names a file in the tmpfs.
func (p *inside) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *inside) mkdirs(names ...string) error {
	for _, name := range names {
		if err := os.MkdirAll(p.path(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (p *inside) mounts() error {
	if err := p.enter(); err != nil {
		return err
	}
	return p.all(
		namedStep{"bind a directory", func() error {
			return errors.Join(p.mkdirs("a", "root/old"), unix.Mount(p.path("a"), p.path("root"), "", unix.MS_BIND, ""))
		}},
		namedStep{"pivot_root", func() error {
			return errors.Join(os.Chdir(p.path("root")), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH))
		}},
	)
}

// overlay mounts the kernel's overlay in memory, and changes in it what a package manager
// does.
func (p *inside) overlay() error {
	if err := p.enter(); err != nil {
		return err
	}
	at := func(name string) string { return p.path("merged", name) }
	return p.all(
		namedStep{"mount overlay", func() error {
			if err := errors.Join(p.mkdirs("lower/dir", "upper", "work", "merged"), os.WriteFile(p.path("lower/file"), []byte("lower"), 0o644)); err != nil {
				return err
			}
			o := "lowerdir=" + p.path("lower") + ",upperdir=" + p.path("upper") + ",workdir=" + p.path("work") + ",userxattr"
			return unix.Mount("overlay", p.path("merged"), "overlay", 0, o)
		}},
		namedStep{"create a file", func() error { return os.WriteFile(at("new"), []byte("x"), 0o600) }},
		namedStep{"append to a file", func() error {
			f, err := os.OpenFile(at("file"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("upper")
			return errors.Join(err, f.Close())
		}},
		namedStep{"rename a file", func() error { return os.Rename(at("file"), at("renamed")) }},
		namedStep{"remove a directory and make it again", func() error { return errors.Join(os.Remove(at("dir")), os.Mkdir(at("dir"), 0o755)) }},
	)
}

func (p *inside) xattr() error {
	if err := p.enter(); err != nil {
		return err
	}
	return p.do("set a user attribute on tmpfs", func() error {
		return errors.Join(p.mkdirs("x"), unix.Setxattr(p.path("x"), "user.gangway", []byte("y"), 0))
	})
}

func (p *inside) proc() error {
	if err := p.enter(); err != nil {
		return err
	}
	return p.do("mount proc", func() error {
		return errors.Join(p.mkdirs("proc"), unix.Mount("proc", p.path("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	})
}

func (p *inside) sys() error {
	if err := p.enter(); err != nil {
		return err
	}
	return p.all(
		namedStep{"bind /sys with all below", func() error {
			return errors.Join(p.mkdirs("sys"), unix.Mount("/sys", p.path("sys"), "", unix.MS_BIND|unix.MS_REC, ""))
		}},
		namedStep{"make it read-only", func() error {
			var st unix.Statfs_t
			if err := unix.Statfs(p.path("sys"), &st); err != nil {
				return err
			}
			// Flags that the host set are locked: leaving one out is refused.
			const locked = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME | unix.ST_NODIRATIME
			return unix.Mount("", p.path("sys"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|uintptr(st.Flags)&locked, "")
		}},
	)
}

// fuse mounts a file system of this process, up to the kernel's first question.
func (p *inside) fuse() error {
	if err := p.enter(); err != nil {
		return err
	}
	fd := -1
	return p.all(
		namedStep{"open /dev/fuse", func() (err error) {
			fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
			return err
		}},
		namedStep{"mount fuse", func() error {
			data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%s,group_id=%s,default_permissions,allow_other", fd, p.uid, p.gid)
			return errors.Join(p.mkdirs("fuse"), unix.Mount("gangway", p.path("fuse"), "fuse", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data))
		}},
		namedStep{"get the kernel's first request", func() error {
			const opInit = 26
			request := make([]byte, 1<<16)
			n, err := unix.Read(fd, request)
			for errors.Is(err, unix.EINTR) {
				n, err = unix.Read(fd, request)
			}
			if err == nil && (n < 8 || binary.NativeEndian.Uint32(request[4:]) != opInit) {
				err = fmt.Errorf("read /dev/fuse: %d bytes are no INIT", n)
			}
			return err
		}},
	)
}

func (p *inside) openTree() error {
	if err := p.enter(); err != nil {
		return err
	}
	fd := -1
	return p.all(
		namedStep{"open_tree a copy of a mount", func() (err error) {
			fd, err = unix.OpenTree(unix.AT_FDCWD, p.dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
			return err
		}},
		namedStep{"move_mount it", func() error {
			return errors.Join(p.mkdirs("to"), unix.MoveMount(fd, "", unix.AT_FDCWD, p.path("to"), unix.MOVE_MOUNT_F_EMPTY_PATH))
		}},
	)
}

func (p *inside) setattr() error {
	if err := p.enter(); err != nil {
		return err
	}
	return p.do("mount_setattr read-only", func() error {
		return unix.MountSetattr(unix.AT_FDCWD, p.dir, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
	})
}
