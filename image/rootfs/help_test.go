package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/usertest"
	"github.com/gangway-hpc/gangway/squashfs"
	"golang.org/x/sys/unix"
)

// insideVar names what a child process, see mounted, has to do in the mount.
const insideVar = "GANGWAY_ROOTFS_INSIDE"

func TestMain(m *testing.M) {
	if name := os.Getenv(insideVar); name != "" {
		if err := inside(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(usertest.Main(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// img is an image for a test.
type img struct {
	*Tree
	paths []string // of the layer files
	index []byte
}

// makeImage makes an image of layers.
func makeImage(t testing.TB, layers ...[]tar.Header) *img {
	t.Helper()
	return makeImageWith(t, content, layers...)
}

// content is what files have in them if nothing else is said: bytes that can be
// compressed, but differ from file to file and from block to block.
func content(name string, size int64) []byte {
	b := make([]byte, 0, size+64)
	for i := 0; int64(len(b)) < size; i++ {
		b = fmt.Appendf(b, "%s %d\n", name, i)
	}
	return b[:size]
}

func makeImageWith(t testing.TB, content func(string, int64) []byte, layers ...[]tar.Header) *img {
	t.Helper()
	m := &img{}
	b := merged.NewBuilder(merged.Options{})
	var readers []*squashfs.Reader
	cache, err := squashfs.NewCache(16 << 20)
	must(t, err)
	for n, list := range layers {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("layer%d", n))
		f, err := os.Create(path)
		must(t, err)
		_, err = layer.Convert(t.Context(), f, tarOf(t, list, content), layer.Options{})
		must(t, errors.Join(err, f.Close()))
		l, err := layer.Open(path, squashfs.ReaderOptions{Cache: cache})
		must(t, err)
		t.Cleanup(func() { must(t, l.Close()) })
		r := l.Squashfs()
		sb := r.Superblock()
		info := merged.LayerInfo{Digest: oci.DigestOf([]byte{byte(n)}), Size: int64(sb.BytesUsed), BlockSize: sb.BlockSize, Compression: sb.Compression}
		must(t, b.Apply(t.Context(), info, l.Entries(), func(inode uint32) (squashfs.Layout, error) {
			i, err := r.InodeByNumber(inode)
			if err != nil {
				return squashfs.Layout{}, err
			}
			return r.Layout(i)
		}))
		readers, m.paths = append(readers, r), append(m.paths, path)
	}
	var out bytes.Buffer
	_, err = b.WriteTo(&out)
	must(t, err)
	m.index = out.Bytes()
	ix, err := merged.New(m.index)
	must(t, err)
	m.Tree = New(ix, readers)
	return m
}

func tarOf(t testing.TB, list []tar.Header, content func(string, int64) []byte) *bytes.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range list {
		h.Format = tar.FormatPAX
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_700_000_000, 123_456_789)
		}
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write(content(h.Name, h.Size))
			must(t, err)
		}
	}
	must(t, w.Close())
	return bytes.NewReader(out.Bytes())
}

func dir(name string, mode int64) tar.Header {
	return tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode}
}

func file(name string, size int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size}
}

func symlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
}

func hardlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

// mount is a tree that is mounted in the namespaces of a child process.
type mount struct {
	*Server
	cmd    *exec.Cmd
	stdin  *os.File // what is written here, the child reads
	stdout *os.File
	stderr *bytes.Buffer
	log    *syncBuffer
}

// mounted starts a child process that mounts the tree in namespaces of its own, as an
// ordinary user does it, and then runs the named part of inside.
func mounted(t testing.TB, tree *Tree, name string, args ...string) *mount {
	t.Helper()
	return mountedFor(t, nil, tree, name, args...)
}

// mountedFor is mounted for a child that outlives its parent, to write to listener.
func mountedFor(t testing.TB, listener *os.File, tree *Tree, name string, args ...string) *mount {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	mine, theirs := os.NewFile(uintptr(pair[0]), "parent"), os.NewFile(uintptr(pair[1]), "child")
	defer mine.Close()
	in, stdin, err := os.Pipe()
	must(t, err)
	stdout, out, err := os.Pipe()
	must(t, err)
	m := &mount{stdin: stdin, stdout: stdout, stderr: &bytes.Buffer{}, log: &syncBuffer{}}
	m.cmd = exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{t.TempDir()}, args...)...)
	m.cmd.Env = append(os.Environ(), insideVar+"="+name)
	m.cmd.ExtraFiles = []*os.File{theirs}
	m.cmd.Stdin, m.cmd.Stdout, m.cmd.Stderr = in, out, m.stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		Pdeathsig:   syscall.SIGKILL,
	}
	if listener != nil {
		m.cmd.ExtraFiles, m.cmd.SysProcAttr.Pdeathsig = append(m.cmd.ExtraFiles, listener), 0
	}
	must(t, m.cmd.Start())
	must(t, errors.Join(theirs.Close(), in.Close(), out.Close()))
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		_ = errors.Join(stdin.Close(), stdout.Close())
	})
	dev, err := receive(pair[0])
	if err != nil {
		_ = m.cmd.Wait()
		t.Fatalf("the child sent no descriptor: %v: %s", err, m.stderr)
	}
	m.Server, err = Serve(dev, tree, ServeOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Log: slog.New(slog.NewTextHandler(m.log, nil))})
	must(t, err)
	_, err = mine.Write([]byte{1})
	must(t, err)
	return m
}

// finish waits for the child and for the server, neither of which may complain.
func (m *mount) finish(t testing.TB) {
	t.Helper()
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("inside the mount: %v: %s", err, m.stderr)
	}
	must(t, m.Wait())
}

func receive(socket int) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d messages: %w", len(messages), errors.Join(err, os.ErrInvalid))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
}

// inside is what the child does: it mounts, hands the descriptor over, and goes on when
// the mount is served.
func inside(name string) error {
	dir := os.Args[1]
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	data := MountOptions(int(dev.Fd()), uint32(os.Getuid()), uint32(os.Getgid()))
	if err := unix.Mount("gangway", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := unix.Sendmsg(3, []byte{1}, unix.UnixRights(int(dev.Fd())), nil, 0); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := dev.Close(); err != nil {
		return err
	}
	if n, err := os.NewFile(3, "parent").Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("wait for the server: %w", err)
	}
	part, ok := parts()[name]
	if !ok {
		return fmt.Errorf("there is no part %q", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return part(ctx, dir, os.Args[2:])
}

// syncBuffer is a bytes.Buffer that a logger may write while a test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
