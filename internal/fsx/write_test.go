package fsx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// TestMain makes the test binary a program that writes until it is killed.
func TestMain(m *testing.M) {
	switch os.Getenv("FSX_TEST_CHILD") {
	case "write":
		writeForEver(os.Getenv("FSX_TEST_FILE"))
	case "lock":
		holdForEver(os.Getenv("FSX_TEST_FILE"))
	}
	os.Exit(m.Run())
}

// from returns a fill that copies r.
func from(r io.Reader) func(*os.File) error {
	return func(f *os.File) error {
		_, err := io.Copy(f, r)
		return err
	}
}

func mustWrite(t *testing.T, name, content string) {
	t.Helper()
	if err := fsx.WriteFile(t.Context(), name, fsx.Options{}, from(strings.NewReader(content))); err != nil {
		t.Fatal(err)
	}
}

// checkDir fails unless dir holds exactly one file, name, with content.
func checkDir(t *testing.T, dir, name, content string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != name {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(got) != content {
		t.Errorf("%s holds %.20q, %v; want %.20q", name, got, err, content)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	mustWrite(t, name, "old")
	checkDir(t, dir, "f", "old")
	mustWrite(t, name, "new content")
	checkDir(t, dir, "f", "new content")

	umask := syscall.Umask(0o027)
	defer syscall.Umask(umask)
	for mode, want := range map[fs.FileMode]fs.FileMode{0: 0o640, 0o755: 0o750, 0o600: 0o600} {
		if err := fsx.WriteFile(t.Context(), name, fsx.Options{Mode: mode}, from(strings.NewReader(""))); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(name); err != nil || st.Mode() != want {
			t.Errorf("mode %o gave %o, want %o", mode, st.Mode(), want)
		}
	}
}

// TestWriteFileFails breaks every step before the rename: the old content stays
// and nothing else is left.
func TestWriteFileFails(t *testing.T) {
	canceled, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no longer wanted")
	cases := []struct {
		name string
		ctx  context.Context
		fill func(*os.File) error
		want error
	}{
		{"reader fails half way", t.Context(), from(io.MultiReader(strings.NewReader("part"), iotest.ErrReader(io.ErrUnexpectedEOF))), io.ErrUnexpectedEOF},
		{"canceled while filling", canceled, func(f *os.File) error {
			cancel(why)
			_, err := f.WriteString("x")
			return err
		}, why},
		{"canceled before", canceled, from(strings.NewReader("x")), why},
		{"file closed by fill", t.Context(), (*os.File).Close, os.ErrClosed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			mustWrite(t, filepath.Join(dir, "f"), "old")
			err := fsx.WriteFile(c.ctx, filepath.Join(dir, "f"), fsx.Options{}, c.fill)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			checkDir(t, dir, "f", "old")
		})
	}
}

func TestWriteFilePanic(t *testing.T) {
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "f"), "old")
	func() {
		defer func() { _ = recover() }()
		_ = fsx.WriteFile(t.Context(), filepath.Join(dir, "f"), fsx.Options{}, func(*os.File) error { panic("fill") })
	}()
	checkDir(t, dir, "f", "old")
}

func TestWriteFileRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/stdout", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir", "link", "fifo"} {
		err := fsx.WriteFile(t.Context(), filepath.Join(dir, name), fsx.Options{}, from(strings.NewReader("x")))
		if !errors.Is(err, fsx.ErrNotRegular) {
			t.Errorf("%s: %v, want ErrNotRegular", name, err)
		}
	}
	err := fsx.WriteFile(t.Context(), filepath.Join(dir, "none", "f"), fsx.Options{}, from(strings.NewReader("x")))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 3 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestWriteFileFullDisk fills a file system of 64 KiB.
func TestWriteFileFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	mustWrite(t, filepath.Join(dir, "f"), "old")
	big := bytes.NewReader(make([]byte, 1<<20))
	err := fsx.WriteFile(t.Context(), filepath.Join(dir, "f"), fsx.Options{}, from(big))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want ENOSPC", err)
	}
	checkDir(t, dir, "f", "old")
	mustWrite(t, filepath.Join(dir, "f"), "fits again")
}

// generation is the content that the killed child writes as its n-th: 200 KB, so
// that writing takes several system calls, and each generation has its own length.
func generation(n byte) []byte { return bytes.Repeat([]byte{n}, 200_000+int(n)) }

func writeForEver(name string) {
	for n := byte(1); ; n++ {
		err := fsx.WriteFile(context.Background(), name, fsx.Options{}, func(f *os.File) error {
			for part := generation(n); len(part) > 0; part = part[min(len(part), 10_000):] {
				if _, err := f.Write(part[:min(len(part), 10_000)]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// child runs this test binary as another process.
func child(t *testing.T, role, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FSX_TEST_CHILD="+role, "FSX_TEST_FILE="+name)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// removeTemps removes what killed writers left, by its name, and fails if dir
// holds anything but that and keep.
func removeTemps(t *testing.T, dir, keep string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), fsx.TempPrefix):
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		case e.Name() != keep:
			t.Fatalf("left behind: %s", e.Name())
		}
	}
}

func TestWriteFileKilled(t *testing.T) {
	kills := 25
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		kills = 1000
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for range kills {
		if err := os.WriteFile(name, generation(0), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := child(t, "write", name)
		// The moment is the point of the test: anywhere from before the
		// first write to the middle of the tenth.
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // says "killed"
		got, err := os.ReadFile(name)
		if err != nil || len(got) == 0 || !bytes.Equal(got, generation(got[0])) {
			t.Fatalf("after kill -9: %d bytes of a mixture, %v", len(got), err)
		}
		removeTemps(t, dir, "f")
	}
}

// TestSweep keeps what is young or locked, and what is none of ours.
func TestSweep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a-z]*\\") // no pattern but a name
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name   string
		time   time.Time
		locked bool
		kept   bool
	}{
		{fsx.TempPrefix + "gone", old, false, false},
		{fsx.TempPrefix + "young", time.Now(), false, true},
		{fsx.TempPrefix + "written", old, true, true},
		{"result", old, false, true},
	} {
		name := filepath.Join(dir, c.name)
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, c.time, c.time); err != nil {
			t.Fatal(err)
		}
		if c.locked {
			defer acquire(t, name, fsx.Exclusive).Release()
		}
		if err := fsx.Sweep(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(name); (err == nil) != c.kept {
			t.Errorf("%s: kept %v, want %v", c.name, err == nil, c.kept)
		}
	}
	if err := fsx.Sweep(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}
