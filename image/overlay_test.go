package image_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/squashfs"
)

// overlayTest is what a child of a test does, as an ordinary user.
type overlayTest struct {
	Root         string // has low, up, work, merged; all of the user's
	Seed         uint64 // of the random changes; 0: the script
	Script       string // sh, run in merged
	Fuse         bool   // fuse-overlayfs, not the kernel's
	Commit, Base string // the file to write, and the image file below; "" is low
}

// user is what root's tests become for what ordinary users do.
const user = 64321

// asUser runs a child of this test as an ordinary user, or inside a user namespace of
// its own where he is root and may mount. It returns what that prints.
func asUser(t testing.TB, inside bool, o overlayTest) string {
	t.Helper()
	arg, err := json.Marshal(o)
	must(t, err)
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer self.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/fd/3", Args: []string{"child"}, Dir: o.Root, ExtraFiles: []*os.File{self},
		Env: append(os.Environ(), "IMAGE_TEST_OVERLAY="+string(arg)), SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	id := os.Getuid()
	if id == 0 {
		id = user
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	if inside {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: id, Size: 1}}
		cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true}
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child %s: %v\n%s", arg, err, errs.String())
	}
	return string(out)
}

// overlayChild is such a child.
func overlayChild(arg string) error {
	var o overlayTest
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return err
	}
	_ = syscall.Close(3) // this program
	syscall.Umask(0o022)
	if o.Commit != "" {
		return commitTo(o.Commit, o.Base, o.Root, image.CommitOptions{Fuse: o.Fuse, Warn: func(name string, err error) { fmt.Println(name, err) }})
	}
	if err := mountOverlay(&o); err != nil {
		return err
	}
	if o.Seed != 0 {
		if err := changeAtRandom(o.Root+"/merged", rand.New(rand.NewPCG(o.Seed, 1))); err != nil {
			return fmt.Errorf("seed %d: %w", o.Seed, err)
		}
	} else if out, err := inDir("sh", o.Root+"/merged", "-ec", o.Script).CombinedOutput(); err != nil {
		return fmt.Errorf("script: %w: %s", err, out)
	}
	// What is in its caches shows the inodes of what was copied as they were before.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount(o.Root+"/merged", 0); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	if err := mountOverlay(&o); err != nil {
		return err
	}
	tree, err := hostTree(o.Root + "/merged")
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(tree)
}

func inDir(name, dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return cmd
}

func mountOverlay(o *overlayTest) error {
	dirs := "lowerdir=" + o.Root + "/low,upperdir=" + o.Root + "/up,workdir=" + o.Root + "/work"
	if !o.Fuse {
		return unix.Mount("overlay", o.Root+"/merged", "overlay", 0, dirs+",userxattr")
	}
	if out, err := exec.Command("fuse-overlayfs", "-o", dirs, o.Root+"/merged").CombinedOutput(); err != nil {
		return fmt.Errorf("fuse-overlayfs: %w: %s", err, out)
	}
	return nil
}

// commitTo writes what is below and above to a file.
func commitTo(file, base, root string, co image.CommitOptions) error {
	ctx := context.Background()
	w, err := squashfs.Create(file, squashfs.WriterOptions{})
	if err != nil {
		return err
	}
	defer w.Close()
	if base == "" {
		err = image.CommitDir(ctx, root+"/low", root+"/up", w.Writer, co)
	} else {
		s, err2 := image.Open(image.Options{Dir: root + "/store"})
		if err2 != nil {
			return err2
		}
		o, err2 := s.OpenFile(ctx, base, squashfs.ReaderOptions{})
		if err2 != nil {
			return err2
		}
		defer o.Close()
		err = o.Commit(ctx, root+"/up", w.Writer, co)
	}
	if err != nil {
		return err
	}
	_, err = w.Commit(ctx, nil)
	return err
}

// hostTree describes a directory as an overlay shows it, by path.
func hostTree(dir string) (map[string]string, error) {
	tree, first := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		rel, err2 := filepath.Rel(dir, name)
		if err = errors.Join(err, err2); err != nil || rel == "." {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		mode := st.Mode
		s := fmt.Sprintf("%o", mode)
		if mode&unix.S_IFMT != unix.S_IFLNK {
			s += fmt.Sprintf(" at %d", st.Mtim.Sec)
		}
		if mode&unix.S_IFMT != unix.S_IFDIR {
			if _, ok := first[st.Ino]; !ok {
				first[st.Ino] = rel
			}
			s += fmt.Sprintf(" is %q", first[st.Ino])
		}
		switch mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			s += " -> " + target
		case unix.S_IFREG:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" %d %x", len(b), sha256.Sum256(b))
		}
		if kind := mode & unix.S_IFMT; kind == unix.S_IFREG || kind == unix.S_IFDIR {
			x := make([]byte, 100)
			if n, err := unix.Lgetxattr(name, "user.note", x); err == nil {
				s += fmt.Sprintf(" note %q", x[:n])
			}
		}
		tree[rel] = s
		return nil
	})
	return tree, err
}

// fileTree describes an image file in the same way.
func fileTree(t testing.TB, file string) map[string]string {
	t.Helper()
	r, err := squashfs.Open(file, squashfs.ReaderOptions{})
	must(t, err)
	defer r.Close()
	must(t, squashfs.Check(t.Context(), r, squashfs.CheckOptions{}))
	tree, first := map[string]string{}, map[uint32]string{}
	must(t, fs.WalkDir(r.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		i := info.Sys().(*squashfs.Inode)
		kind := map[squashfs.Type]uint32{
			squashfs.TypeDir: unix.S_IFDIR, squashfs.TypeFile: unix.S_IFREG, squashfs.TypeSymlink: unix.S_IFLNK,
			squashfs.TypeFIFO: unix.S_IFIFO, squashfs.TypeCharDevice: unix.S_IFCHR, squashfs.TypeBlockDevice: unix.S_IFBLK,
		}[i.Type]
		var s strings.Builder
		s.WriteString(fmt.Sprintf("%o", kind|uint32(i.Perm)))
		if i.Type != squashfs.TypeSymlink {
			s.WriteString(fmt.Sprintf(" at %d", i.MTime))
		}
		if i.Type != squashfs.TypeDir {
			if _, ok := first[i.Number]; !ok {
				first[i.Number] = name
			}
			s.WriteString(fmt.Sprintf(" is %q", first[i.Number]))
		}
		switch i.Type {
		case squashfs.TypeSymlink:
			target, err := r.ReadLink(*i)
			must(t, err)
			s.WriteString(" -> " + target)
		case squashfs.TypeFile:
			b, err := fs.ReadFile(r.FS(), name)
			must(t, err)
			s.WriteString(fmt.Sprintf(" %d %x", len(b), sha256.Sum256(b)))
		}
		attrs, err := r.Xattrs(*i)
		must(t, err)
		for _, x := range attrs {
			if x.Name == "user.note" {
				s.WriteString(fmt.Sprintf(" note %q", x.Value))
			} else {
				t.Errorf("%s has the attribute %s", name, x.Name)
			}
		}
		tree[name] = s.String()
		return nil
	}))
	return tree
}

// modes returns those of all that this user may see.
func modes(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err == nil {
			all[name] = d.Type().String()
			if st, err := d.Info(); err == nil {
				all[name] = st.Mode().String()
			}
		}
		return err
	}))
	return all
}

func withoutLinks(tree map[string]string) map[string]string {
	all := map[string]string{}
	for name, s := range tree {
		before, after, _ := strings.Cut(s, " is \"")
		_, after, _ = strings.Cut(after, "\"")
		all[name] = before + after
	}
	return all
}

// lowTree makes the directories of an overlay test, which are the user's.
func lowTree(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() { // as an ordinary user could not remove what is closed
		_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(name, 0o755)
			}
			return nil
		})
	})
	for dir := root; dir != os.TempDir(); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	for _, dir := range []string{"low/etc", "low/lib/a/b", "low/var/cache", "up", "work", "merged"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for n, name := range []string{"etc/passwd", "etc/shadow", "lib/a/x", "lib/a/b/y", "lib/z", "var/cache/1", "var/cache/2", "big"} {
		must(t, os.WriteFile(filepath.Join(root, "low", name), []byte(noise(uint64(n), 1000+n*30_000)), 0o644))
	}
	must(t, os.Link(root+"/low/lib/z", root+"/low/lib/z2"))
	must(t, os.Link(root+"/low/lib/z", root+"/low/etc/z3"))
	must(t, os.Symlink("a/x", root+"/low/lib/sym"))
	must(t, unix.Setxattr(root+"/low/lib/a", "user.note", []byte("low"), 0))
	must(t, unix.Setxattr(root+"/low/lib/z", "user.note", []byte("z"), 0))
	must(t, os.Chmod(root+"/low/etc/shadow", 0o600))
	giveAway(t, root)
	return root
}

// giveAway makes files the user's that such children are.
func giveAway(t testing.TB, root string) {
	t.Helper()
	if os.Geteuid() == 0 {
		must(t, filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(name, user, user))
		}))
	}
}
