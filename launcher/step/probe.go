package step

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// What the writable rungs are probed by: a container of a tiny image, whose command is
// this program, which does in it what programs do that install software. An overlay
// that can be mounted but not be written to, as that of Linux 5.15 over FUSE, is found
// out before a user's command does.

// probeDir is where the probe works in its container.
const probeDir = "/probe"

// The files of the probe's image.
const (
	probeFile = probeDir + "/file"
	probeExe  = probeDir + "/exe"
	probeSub  = probeDir + "/dir"
	probeText = "lower\n"
)

// RunProbe does the probe's work; it is what the program does that Options.Probe names.
// It works in the container's root.
func RunProbe() error {
	for _, p := range []struct {
		what string
		do   func() error
	}{
		{"create a file", func() error { return os.WriteFile(probeDir+"/new", []byte("x"), 0o600) }},
		{"append to a file of the image", appendFile},
		{"map a file of the image", mapFile},
		{"rename a file of the image", func() error { return os.Rename(probeFile, probeDir+"/renamed") }},
		{"remove and make again a directory of the image", func() error {
			return errors.Join(os.Remove(probeSub), os.Mkdir(probeSub, 0o700))
		}},
		{"see a directory made again empty", emptyDir},
		{"set an extended attribute", func() error { return unix.Setxattr(probeDir+"/new", "user.probe", []byte("x"), 0) }},
		{"execute a file of the image", func() error { return exec.Command(probeExe).Run() }},
	} {
		if err := p.do(); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
	}
	return nil
}

func appendFile() error {
	f, err := os.OpenFile(probeFile, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("upper\n")
	return errors.Join(err, f.Close())
}

func mapFile() error {
	f, err := os.Open(probeFile)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, len(probeText), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, []byte(probeText)) {
		err = fmt.Errorf("content is %q", b)
	}
	return errors.Join(err, unix.Munmap(b))
}

func emptyDir() error {
	names, err := os.ReadDir(probeSub)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("it has %d names", len(names))
	}
	return err
}

// emptyIndex is the merged index of an image with nothing in it.
func emptyIndex() (*merged.Index, error) {
	var b bytes.Buffer
	if _, err := merged.NewBuilder(merged.Options{}).WriteTo(&b); err != nil {
		return nil, err
	}
	return merged.New(b.Bytes())
}

// probed is what is known of this machine until it is started again.
type probed struct {
	Key  string `json:"key"`
	Rung string `json:"rung"`
	Why  string `json:"why,omitempty"` // the better rungs are not used
}

// probeKey changes with what the probe's result depends on: the boot, the kernel, and
// the namespaces, since a container has the machine's boot id.
func probeKey() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	parts := []string{"1", strings.TrimSpace(string(id))}
	for _, ns := range []string{"user", "mnt"} {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return "", err
		}
		parts = append(parts, link)
	}
	if program, err := exec.LookPath("fuse-overlayfs"); err == nil {
		parts = append(parts, program)
	}
	return strings.Join(parts, " "), nil
}

// writableRung returns the best rung for containers that are written to, probed once a
// boot.
func (s *step) writableRung(ctx context.Context) (string, error) {
	if s.dry {
		if known, _, err := knownWritable(s.Dirs[0]); err == nil && known != (Rung{}) {
			return known.Rung, nil
		}
		return rungOverlay, nil
	}
	p, err := ProbeWritable(ctx, s.Options)
	return p.Rung, err
}

// knownWritable returns what a probe found since the machine was started, and how that
// is told apart from what was found before.
func knownWritable(dir string) (Rung, string, error) {
	key, err := probeKey()
	if err != nil {
		return Rung{}, "", err
	}
	var known probed
	if b, err := os.ReadFile(filepath.Join(dir, probedName)); err == nil && json.Unmarshal(b, &known) == nil && known.Key == key {
		return Rung{known.Rung, known.Why}, key, nil
	}
	return Rung{}, key, nil
}

// probedName is where a probe leaves what it found, in the directory of run directories.
const probedName = "writable.json"

// ProbeWritable finds the best rung for writable containers, by what was found since
// the machine was started, or by trying.
func ProbeWritable(ctx context.Context, o Options) (Rung, error) {
	known, key, err := knownWritable(o.Dirs[0])
	if err != nil || known != (Rung{}) {
		return known, err
	}
	if Sealed() {
		return Rung{Rung: rungOverlay}, nil // the probe needs a program that has a name
	}
	r, err := TryWritable(ctx, o)
	if err != nil {
		return r, err
	}
	b, err := json.Marshal(probed{Key: key, Rung: r.Rung, Why: r.Why})
	if err != nil {
		return r, err
	}
	err = fsx.WriteFile(ctx, filepath.Join(o.Dirs[0], probedName), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the directory comes with the first container
	}
	return r, err
}

// Rung is a step of the ladder of root file systems.
type Rung struct {
	Rung string // as --verbose names it
	Why  string // better ones are not used; empty for the best
}

// TryWritable tries the rungs for writable containers by doing in them what programs do.
func TryWritable(ctx context.Context, o Options) (Rung, error) {
	r := Rung{Rung: rungTree}
	if !canOpenFUSE() {
		r.Why = "/dev/fuse cannot be opened"
		return r, nil
	}
	var why []string
	for _, rung := range []string{rungOverlay, rungFuseOverlay} {
		err := tryWritable(ctx, o, rung)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		if err == nil {
			r.Rung = rung
			break
		}
		if !stepsDown(err) && !errors.Is(err, errProbe) {
			return r, fmt.Errorf("try %s: %w", rung, err) // not the rung's fault
		}
		why = append(why, fmt.Sprintf("%s: %v", rung, err))
	}
	r.Why = strings.Join(why, "; ")
	return r, nil
}

// exitZero is an ELF program that exits at once with status 0, for the machines that
// Gangway is built for.
func exitZero() []byte {
	machine, code := uint16(62), []byte{0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05} // xor edi,edi; mov eax,60; syscall
	if runtime.GOARCH == "arm64" {
		machine, code = 183, []byte{0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4} // mov x0,0; mov x8,93; svc 0
	}
	const base, head = 0x400000, 64 + 56
	size := uint64(head + len(code))
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	for _, v := range []uint64{base + head, 64, 0} { // entry, program headers, no sections
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable, executable
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
