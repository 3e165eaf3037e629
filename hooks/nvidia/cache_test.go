package nvidia_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// ldconfigCache makes the ld.so.cache of a root; false if there is no ldconfig.
func ldconfigCache(t *testing.T, root, dir string) bool {
	t.Helper()
	if err := os.MkdirAll(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/etc/ld.so.conf", []byte(dir+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sbin/ldconfig"); err != nil {
		t.Log("without /sbin/ldconfig the driver's own cache is not tested")
		return false
	}
	if out, err := exec.Command("/sbin/ldconfig", "-r", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return true
}

// TestCached: a discovery is kept, found again, and made anew when the machine is
// not the same any more.
func TestCached(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, MIG: 1, Extras: true})
	dir := filepath.Join(t.TempDir(), "run")
	o := nvidia.Options{Root: tree.Root}
	cached := func() *nvidia.Driver {
		t.Helper()
		d, params, err := nvidia.Cached(t.Context(), dir, o)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(params); err != nil || string(text) != d.Params {
			t.Fatalf("params %q, %v", text, err)
		}
		return d
	}
	first := cached()
	files, _ := filepath.Glob(dir + "/*.driver")
	if len(files) != 1 {
		t.Fatalf("kept in %v", files)
	}
	if want := discover(t, tree); !reflect.DeepEqual(first, want) {
		t.Errorf("%+v, want %+v", first, want)
	}
	// What is kept is what is used: a change in it comes back.
	mark := func() {
		t.Helper()
		files, _ := filepath.Glob(dir + "/*.driver")
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, bytes.Replace(text, []byte("NVIDIA H100"), []byte("MARKED H100"), 1), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	isMarked := func(d *nvidia.Driver) bool { return strings.HasPrefix(d.GPUs[0].Model, "MARKED") }
	mark()
	if !isMarked(cached()) {
		t.Error("the kept discovery is not used")
	}
	for what, change := range map[string]func() error{
		"library": func() error {
			name := tree.Lib + "/libcuda.so." + tree.Version
			return errors.Join(os.Remove(name), os.WriteFile(name, fakedriver.ELF(fakedriver.Library{Soname: "libcuda.so.1"}), 0o644))
		},
		"program":  func() error { return os.Remove(tree.Bin + "/nvidia-smi") },
		"boot":     func() error { return os.WriteFile(tree.Proc+"/sys/kernel/random/boot_id", []byte("x\n"), 0o644) },
		"node":     func() error { return os.Remove(tree.Dev + "/nvidia1") },
		"channel":  func() error { return os.Remove(tree.Dev + "/nvidia-caps-imex-channels/channel7") },
		"instance": func() error { return os.RemoveAll(tree.Proc + "/driver/nvidia/capabilities/gpu0/mig/gi1/ci0") },
		"socket":   func() error { return os.Remove(tree.Root + "/run/nvidia-persistenced/socket") },
		"garbage": func() error {
			files, _ := filepath.Glob(dir + "/*.driver")
			for _, name := range files {
				if err := os.WriteFile(name, []byte("{"), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		cached()
		mark()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if d := cached(); isMarked(d) {
			t.Errorf("%s changed, and the old discovery is used", what)
		} else if want := discover(t, tree); !reflect.DeepEqual(d, want) {
			t.Errorf("%s changed: %+v, want %+v", what, d, want)
		}
	}
}

// TestCachedTogether: several processes that begin at once all get the same.
func TestCachedTogether(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2})
	dir := filepath.Join(t.TempDir(), "run")
	want := discover(t, tree)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			d, _, err := nvidia.Cached(t.Context(), dir, nvidia.Options{Root: tree.Root})
			if err != nil || !reflect.DeepEqual(d, want) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	wg.Wait()
}

func TestCacheNotPrivate(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 1})
	dir := t.TempDir()
	cached := func(dir string) error {
		_, _, err := nvidia.Cached(t.Context(), dir, nvidia.Options{Root: tree.Root})
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := cached(dir); !errors.Is(err, nvidia.ErrNotPrivate) {
		t.Errorf("a directory that all may write to: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := cached(link); !errors.Is(err, nvidia.ErrNotPrivate) {
		t.Errorf("a link: %v", err)
	}
	if os.Getuid() == 0 {
		if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 1234, 1234)); err != nil {
			t.Fatal(err)
		}
		if err := cached(dir); !errors.Is(err, nvidia.ErrNotPrivate) {
			t.Errorf("somebody else's directory: %v", err)
		}
	} else {
		t.Log("without root somebody else's directory is not tested")
	}
}

func TestCachedNoDriver(t *testing.T) {
	if _, _, err := nvidia.Cached(t.Context(), t.TempDir(), nvidia.Options{Root: t.TempDir()}); !errors.Is(err, nvidia.ErrNoDriver) {
		t.Error(err)
	}
}

// reportCPU adds the processor's time, which on a busy machine says more than the
// clock does.
func reportCPU(b *testing.B) func() {
	used := func() int64 {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano() + r.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

func BenchmarkDiscover(b *testing.B) {
	tree := fakedriver.New(b, fakedriver.Options{GPUs: 8, Extras: true, Compat: true})
	defer reportCPU(b)()
	for b.Loop() {
		d, err := nvidia.Discover(b.Context(), nvidia.Options{Root: tree.Root})
		if err != nil {
			b.Fatal(err)
		}
		_ = d.Spec(nvidia.Default, "")
	}
}

func BenchmarkCached(b *testing.B) {
	tree := fakedriver.New(b, fakedriver.Options{GPUs: 8, Extras: true, Compat: true})
	dir := filepath.Join(b.TempDir(), "run")
	defer reportCPU(b)()
	for b.Loop() {
		d, params, err := nvidia.Cached(b.Context(), dir, nvidia.Options{Root: tree.Root})
		if err != nil {
			b.Fatal(err)
		}
		_ = d.Spec(nvidia.Default, params)
	}
}

// FuzzDecode: what was not written by us is refused, or is a Driver that is written
// the same again; never a panic.
func FuzzDecode(f *testing.F) {
	tree := fakedriver.New(f, fakedriver.Options{GPUs: 2, MIG: 1, Extras: true})
	f.Add(nvidia.Encode(discover(f, tree), "stamp"))
	f.Add(nvidia.Encode(&nvidia.Driver{}, ""))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, stamp, ok := nvidia.Decode(string(text))
		if !ok {
			return
		}
		again, _, ok := nvidia.Decode(string(nvidia.Encode(d, stamp)))
		if !ok || !reflect.DeepEqual(d, again) {
			t.Fatalf("%+v, again %+v", d, again)
		}
	})
}
