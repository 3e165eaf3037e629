package runtime

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// inside is what a test does in a container: the requests that type into terminal 0, and
// which session keyring it has.
func inside() error {
	for _, call := range [][2]uintptr{{unix.SYS_IOCTL, unix.TIOCSTI}, {unix.SYS_IOCTL, tiocLinux}, {unix.SYS_IOCTL, 1<<32 | unix.TIOCSTI}, {unix.SYS_IOCTL, unix.TIOCGWINSZ}} {
		buf := make([]byte, 8)
		_, _, errno := unix.Syscall(call[0], 0, call[1], uintptr(unsafe.Pointer(&buf[0])))
		fmt.Println("ioctl", int(errno))
	}
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	fmt.Println("keyring", id, err)
	return nil
}

// self lets the command of c be a part that this program plays.
func self(t *testing.T, c *Config) {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c.Pass = append(c.Pass, f)
	c.Spec.Process.Args = []string{"/proc/self/fd/3"}
	c.Spec.Process.Env = append(c.Spec.Process.Env, helperVariable+"=inside")
}

// TestTypesNothing: no process of a container can type into a terminal, its own included.
// The terminal's other requests work.
func TestTypesNothing(t *testing.T) {
	for _, fake := range []bool{false, true} {
		c := shell(t, "")
		self(t, c)
		c.FakeRoot = fake
		c.Spec.Process.Terminal = true
		box := start(t, c)
		var shown bytes.Buffer
		_, _ = shown.ReadFrom(box.Terminal()) // EIO is its end
		out := strings.ReplaceAll(shown.String(), "\r", "")
		if !strings.HasPrefix(out, "ioctl 1\nioctl 1\nioctl 1\nioctl 0\n") {
			t.Errorf("%q", out)
		}
	}
}

// TestTerminalFilter: all ways to call ioctl are covered, and nothing else is refused.
func TestTerminalFilter(t *testing.T) {
	allow, refuse := uint32(unix.SECCOMP_RET_ALLOW), uint32(unix.SECCOMP_RET_ERRNO|unix.EPERM)
	for _, a := range ioctlABIs() {
		for _, nr := range a.ioctl {
			for request, want := range map[uint32]uint32{unix.TIOCSTI: refuse, tiocLinux: refuse, unix.TCGETS: allow, 0: allow} {
				if got := judge(terminalFilter(), a.arch, nr, request); got != want {
					t.Errorf("%#x, %#x, %#x: %#x", a.arch, nr, request, got)
				}
			}
		}
		for _, nr := range []uint32{0, 1, 53, 55, 1000} {
			if got := judge(terminalFilter(), a.arch, nr, unix.TIOCSTI); got != allow {
				t.Errorf("%#x, %#x: %#x", a.arch, nr, got)
			}
		}
	}
	if got := judge(terminalFilter(), unix.AUDIT_ARCH_S390, 54, unix.TIOCSTI); got != allow {
		t.Errorf("another architecture: %#x", got)
	}
}

// judge is what a filter says of a call.
func judge(filter []byte, arch, nr, second uint32) uint32 {
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[offsetNR:], nr)
	binary.LittleEndian.PutUint32(data[offsetArch:], arch)
	binary.LittleEndian.PutUint32(data[offsetSecond:], second)
	var word uint32
	for pc := 0; ; pc++ {
		b := filter[8*pc:]
		code, jt, jf, k := binary.NativeEndian.Uint16(b), b[2], b[3], binary.NativeEndian.Uint32(b[4:])
		switch code {
		case bpfLoad:
			word = binary.LittleEndian.Uint32(data[k:])
		case bpfEqual:
			if word == k {
				pc += int(jt)
			} else {
				pc += int(jf)
			}
		default:
			return k
		}
	}
}

// TestKeyring: a container does not have the caller's keys.
func TestKeyring(t *testing.T) {
	own, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("needs root to allow keyctl here")
	}
	if errors.Is(err, unix.EKEYREVOKED) {
		own, err = 0, nil // the login has ended, and its keys with it
	}
	if err != nil {
		t.Fatal(err)
	}
	c := shell(t, "")
	self(t, c)
	out, _ := output(t, c)
	_, word, _ := strings.Cut(out, "keyring ")
	id, _, _ := strings.Cut(word, " ")
	if id == strconv.Itoa(own) || !strings.HasSuffix(out, "<nil>\n") {
		t.Errorf("own %d: %q", own, out)
	}
}

// TestStartsWith: the umask and the signals that are ignored are as asked for, in the first
// process and in one that joins, whose caller ignores others.
func TestStartsWith(t *testing.T) {
	script := `umask; grep SigIgn /proc/self/status` // 2 lines
	c := shell(t, script+`; read x`)
	mask := uint32(0o027)
	c.Spec.Process.User.Umask = &mask
	c.Ignored = []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT}
	stdin, _ := pipe(t)
	r, w := pipe(t)
	c.Stdin, c.Stdout = stdin, w
	box := start(t, c)
	p, err := box.Join(t.Context(), JoinProcess{Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, Stdout: w, Ignored: []syscall.Signal{syscall.SIGINT}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	var out string
	for strings.Count(out, "\n") < 4 {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		out += string(buf[:n])
	}
	if strings.Count(out, "0027\n") != 2 || strings.Count(out, "SigIgn:\t0000000000000005\n") != 1 || strings.Count(out, "SigIgn:\t0000000000000002\n") != 1 {
		t.Errorf("%q", out)
	}
}

// asRoot makes the user of c root inside.
func asRoot(c *Config) *Config {
	c.FakeRoot = true
	c.Spec.Linux.UIDMappings[0].ContainerID, c.Spec.Linux.GIDMappings[0].ContainerID = 0, 0
	return c
}

// TestFakeRootMounts: who is root inside changes no mount that was made for him, neither
// in the first process nor in one that joins, and can mount what is his own.
func TestFakeRootMounts(t *testing.T) {
	script := `id -u
		mount -o remount,bind,rw /data 2>/dev/null && echo remounted
		umount /data 2>/dev/null && echo unmounted
		touch /data/x 2>/dev/null && echo written
		mount -t tmpfs tmpfs /tmp && touch /tmp/x && chown 7:8 /tmp/x && umount /tmp && echo fine
		id -u`
	c := asRoot(small(t, script+"; echo end; read x"))
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(c.Root.Dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/data", Type: "bind", Source: data, Options: []string{"rbind", "ro"}})
	stdin, _ := pipe(t)
	r, w := pipe(t)
	c.Stdin, c.Stdout, c.Stderr = stdin, w, w
	box := start(t, c)
	read := func() string {
		var out string
		for buf := make([]byte, 4096); !strings.HasSuffix(out, "end\n"); {
			n, err := r.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			out += string(buf[:n])
		}
		return out
	}
	if out := read(); out != "0\nfine\n0\nend\n" {
		t.Errorf("first process: %q", out)
	}
	p, err := box.Join(t.Context(), JoinProcess{
		Args: []string{"sh", "-c", script + "; echo end"}, Env: []string{"PATH=/usr/bin:/bin"}, Stdout: w, Stderr: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	if out := read(); out != "0\nfine\n0\nend\n" {
		t.Errorf("joined: %q", out)
	}
	if status, err := p.Wait(); err != nil || status.Code != 0 {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestOverlayProgramApart: fuse-overlayfs uses the host's names, whatever the container does
// with its files, and who is in the container, as root or not, has nothing to do with it.
func TestOverlayProgramApart(t *testing.T) {
	program, err := exec.LookPath("fuse-overlayfs")
	if err != nil {
		t.Skip("needs the package fuse-overlayfs")
	}
	for _, fake := range []bool{false, true} {
		c := small(t, `grep fuse /proc/[0-9]*/comm; kill -9 -1 2>/dev/null; mv /etc/dir /etc/moved && ls /etc/moved && setfattr -n user.k -v v /etc/file && getfattr --absolute-names --only-values -n user.k /etc/file && echo
			ln -s x /etc/link && chmod 600 /etc/file && touch -d @1 /etc/file && stat -c %a,%Y /etc/file`)
		if fake {
			asRoot(c)
		}
		dir := filepath.Join(c.Root.Dir, "etc/dir")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{dir + "/x", dir + "/../file"} {
			if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		top := t.TempDir()
		c.Root.Overlay = &Overlay{Program: program, Upper: filepath.Join(top, "upper"), Work: filepath.Join(top, "work")}
		for _, d := range []string{c.Root.Overlay.Upper, c.Root.Overlay.Work} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		out, status := output(t, c)
		if status.Code != 0 || out != "x\nv\n600,1\n" {
			t.Errorf("%v: %+v: %q", fake, status, out)
		}
	}
}
