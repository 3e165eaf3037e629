package rootfs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// show prints all that can be seen below a directory.
func show(out *os.File, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %o uid=%t nlink=%d mtime=%d.%d", strings.TrimPrefix(path, dir), st.Mode, int(st.Uid) == os.Getuid(), st.Nlink, st.Mtim.Sec, st.Mtim.Nsec)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" size=%d %.40q", st.Size, b)
		case d.Type()&fs.ModeDevice != 0:
			line += fmt.Sprintf(" dev=%x", st.Rdev)
		}
		_, err = fmt.Fprintln(out, line)
		return err
	})
}

// TestShow: what is in the layers and what was added is seen in the mount as it should.
func TestShow(t *testing.T) {
	m := makeImage(t,
		[]tar.Header{
			dir("etc", 0o755), file("etc/passwd", 20), file("etc/gone", 5), dir("usr/bin", 0o755),
			file("usr/bin/tool", 300_000), hardlink("usr/bin/alias", "usr/bin/tool"), symlink("bin", "usr/bin"),
			{Name: "usr/bin/su", Typeflag: tar.TypeReg, Mode: 0o4755},
			{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 0x12345},
			{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
		},
		[]tar.Header{{Name: "etc/.wh.gone", Typeflag: tar.TypeReg}, file("etc/new", 7)},
	)
	for _, path := range []string{"/mnt/data", "/bin/sub"} {
		if _, err := m.Mountpoint(path, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.AddFile("/etc/passwd", []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := mounted(t, m.Tree, "show")
	var out bytes.Buffer
	_, err := out.ReadFrom(c.stdout)
	must(t, err)
	c.finish(t)
	const mtime = " mtime=1700000000.123456789"
	want := []string{
		" 40755 uid=true nlink=5 mtime=0.0",
		"/bin 120777 uid=true nlink=1" + mtime + " -> usr/bin",
		"/etc 40755 uid=true nlink=2" + mtime,
		"/etc/new 100644 uid=true nlink=1" + mtime + ` size=7 "etc/new"`,
		"/etc/passwd 100600 uid=true nlink=1 mtime=0.0 size=4 \"mine\"",
		"/mnt 40755 uid=true nlink=3 mtime=0.0",
		"/mnt/data 40755 uid=true nlink=2 mtime=0.0",
		"/null 20666 uid=true nlink=1" + mtime + " dev=12300145",
		"/pipe 10600 uid=true nlink=1" + mtime,
	}
	got := strings.Split(strings.Trim(out.String(), "\n"), "\n")
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("not seen: %s", line)
		}
	}
	if len(got) != 15 {
		t.Errorf("%d files, want 15", len(got))
	}
	if t.Failed() {
		t.Logf("seen:\n%s", out.String())
	}
}

// TestRead: files of all sizes read right, in many ways at once.
func TestRead(t *testing.T) {
	var list []tar.Header
	var args []string
	sizes := []int64{1, 4095, 128 << 10, 128<<10 + 1, 1 << 20, 5_000_001, 30_000_000}
	if testing.Short() {
		sizes = sizes[:len(sizes)-1]
	}
	for i, size := range sizes {
		name := fmt.Sprintf("f%d", i)
		list = append(list, file(name, size))
		args = append(args, name, fmt.Sprint(size))
	}
	mounted(t, makeImage(t, list[:4], list[4:]).Tree, "read", args...).finish(t)
}

// TestBigDirectory: a directory of 100,000 names (10,000 with -short), and one that has additions.
func TestBigDirectory(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	list := make([]tar.Header, n)
	for i := range list {
		list[i] = file(fmt.Sprintf("big/file-with-a-name-%d", i), 0)
	}
	m := makeImage(t, list)
	mounted(t, m.Tree, "list", "big", fmt.Sprint(n)).finish(t)
	for i := range 500 {
		if _, err := m.Mountpoint(fmt.Sprintf("/big/new%d", i), i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.AddFile("/big/file-with-a-name-7", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mounted(t, m.Tree, "list", "big", fmt.Sprint(n+500)).finish(t)
}

func TestMissing(t *testing.T) {
	mounted(t, makeImage(t, []tar.Header{dir("usr", 0o755)}).Tree, "missing").finish(t)
}

// TestDamage: a block that cannot be decoded is EIO for who reads it and one line in the
// log; other files stay readable.
func TestDamage(t *testing.T) {
	m := makeImage(t, []tar.Header{file("bad", 128<<10)}, []tar.Header{file("good", 128<<10)})
	n, err := m.lookup(1, "bad")
	must(t, err)
	d, err := m.ix.Data(n)
	must(t, err)
	f, err := os.OpenFile(m.paths[0], os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 32), d.Start)
	must(t, err)
	c := mounted(t, m.Tree, "damage")
	c.finish(t)
	if log := c.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "image cannot be read") {
		t.Errorf("the log says:\n%s", log)
	}
}

// TestXattrs: what users set is shown, and what gives privileges or steers overlayfs is
// not. Of an image without any, the kernel stops asking.
func TestXattrs(t *testing.T) {
	h := file("has", 1)
	h.PAXRecords = map[string]string{
		"SCHILY.xattr.user.name": "value", "SCHILY.xattr.user.overlay.opaque": "y",
		"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.trusted.x": "y",
	}
	mounted(t, makeImage(t, []tar.Header{h}).Tree, "xattrs").finish(t)
	mounted(t, makeImage(t, []tar.Header{file("a", 1)}).Tree, "noxattr").finish(t)
}

// TestClose: a server that is closed ends though the mount is there; it gives ENOTCONN
// to who uses it, and nobody hangs. One whose mount is gone can be closed, too.
func TestClose(t *testing.T) {
	m := makeImage(t, []tar.Header{file("a", 1000), file("b", 1000)})
	c := mounted(t, m.Tree, "closed")
	if _, err := c.stdout.Read(make([]byte, 10)); err != nil {
		t.Fatal(err, c.stderr)
	}
	must(t, c.Close())
	must(t, c.Wait())
	must(t, c.stdin.Close())
	c.finish(t)
	must(t, c.Close())
	c = mounted(t, m.Tree, "nothing")
	c.finish(t)
	must(t, c.Close())
}

// TestServerKilled: when the server's process is killed, nobody who uses the mount hangs.
func TestServerKilled(t *testing.T) {
	const killed = "GANGWAY_ROOTFS_KILLED"
	if os.Getenv(killed) != "" {
		// The second process: it serves, and kills itself when the mount is in use.
		// Who uses it outlives it, and has a line to the first.
		first := os.NewFile(3, "first")
		c := mountedFor(t, first, makeImage(t, []tar.Header{file("a", 1000)}).Tree, "die")
		if _, err := c.stdout.Read(make([]byte, 10)); err != nil {
			t.Fatal(err, c.stderr)
		}
		must(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestServerKilled$", "-test.timeout=30s")
	cmd.Env = append(os.Environ(), killed+"=1")
	cmd.ExtraFiles = []*os.File{w}
	must(t, cmd.Start())
	must(t, w.Close())
	_ = cmd.Wait() // killed
	must(t, r.SetReadDeadline(time.Now().Add(30*time.Second)))
	said, err := io.ReadAll(r)
	if err != nil || !strings.Contains(string(said), syscall.ENOTCONN.Error()) {
		t.Errorf("who uses the mount says %q, %v; want %v", said, err, syscall.ENOTCONN)
	}
}
