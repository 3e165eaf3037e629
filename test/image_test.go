package test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestRealImage pulls an image of Debian packages, with real whiteouts and replaced
// files, from Debian's registry, as an ordinary user, and compares what is exported
// with what umoci unpacks.
func TestRealImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds a Debian image, and drops its rights")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	// Kept between runs.
	built := filepath.Join(cache, "gangway-test", "images", "small")
	run(t, nil, "images/build.sh", "small", built)

	dir := sharedDir(t)
	watchSources(t)
	build := exec.Command("go", "build", "-o", dir, "../cmd/gangway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	registry := startRegistry(t)
	for _, tag := range []string{"1", "2"} {
		run(t, nil, "skopeo", "copy", "-q", "--dest-no-creds", "--dest-tls-verify=false", "oci:"+built+"/layout:"+tag, "docker://"+registry+"/small:"+tag)
	}
	user := &syscall.Credential{Uid: 54321, Gid: 54321}
	gangway := func(args ...string) string { return run(t, user, filepath.Join(dir, "gangway"), args...) }
	t.Setenv("GANGWAY_STORE", filepath.Join(dir, "home", "store"))
	t.Setenv("HOME", filepath.Join(dir, "home"))

	for _, tag := range []string{"1", "2"} {
		gangway("image", "pull", "-q", registry+"/small:"+tag)
		gangway("image", "verify", "small:"+tag)
		if tag == "1" {
			continue // the other has all of its layers but one
		}
		sqsh := filepath.Join(dir, "home", tag+".sqsh")
		gangway("image", "export", "small:"+tag, "-o", sqsh)
		ours, theirs := filepath.Join(dir, "ours"+tag), filepath.Join(dir, "theirs"+tag)
		run(t, nil, "unsquashfs", "-q", "-n", "-d", ours, sqsh)
		run(t, nil, "umoci", "unpack", "--image", built+"/layout:"+tag, theirs)
		compareTrees(t, ours, filepath.Join(theirs, "rootfs"))
	}
	// As root the same file comes out, though another process made its layers.
	run(t, nil, filepath.Join(dir, "gangway"), "image", "pull", "-q", "--store", filepath.Join(dir, "rootstore"), registry+"/small:2")
	run(t, nil, filepath.Join(dir, "gangway"), "image", "export", "--store", filepath.Join(dir, "rootstore"), "small:2", "-o", filepath.Join(dir, "root.sqsh"))
	run(t, nil, "cmp", filepath.Join(dir, "root.sqsh"), filepath.Join(dir, "home", "2.sqsh"))
}

// sharedDir returns a directory that others may enter, with a home for user 54321.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gangway-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home := filepath.Join(dir, "home")
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(home, 0o700), os.Chown(home, 54321, 54321)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run runs a program, as another user if one is given, and returns what it printed.
func run(t *testing.T, as *syscall.Credential, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
		cmd.Dir = "/"
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out.Bytes(), errs.Bytes())
	}
	return out.String()
}

// compareTrees fails for each difference between two directories.
func compareTrees(t *testing.T, a, b string) {
	t.Helper()
	one, other := describeTree(t, a), describeTree(t, b)
	if len(one) < 1000 {
		t.Errorf("%s has %d files only", a, len(one))
	}
	for name, is := range one {
		if other[name] != is {
			t.Errorf("%s: %s, want %s", name, is, other[name])
		}
	}
	for name := range other {
		if _, ok := one[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

// describeTree says of each file what matters. Times of squashfs have whole seconds.
func describeTree(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := os.Lstat(name)
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		what := fmt.Sprintf("%v %d:%d %d", st.Mode(), sys.Uid, sys.Gid, st.ModTime().Unix())
		switch {
		case st.Mode().IsRegular():
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			if _, err := io.Copy(h, f); err != nil {
				return err
			}
			what += fmt.Sprintf(" %d links %x", sys.Nlink, h.Sum(nil)[:8])
		case st.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			what += " -> " + target
		case st.Mode()&fs.ModeDevice != 0:
			what += fmt.Sprintf(" %x", sys.Rdev)
		}
		rel, err := filepath.Rel(root, name)
		tree[rel] = what
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
