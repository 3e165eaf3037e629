package runtime

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOverlay: what is written goes to the upper directory or to memory, and is what the
// container sees; the lower directory stays as it is.
func TestOverlay(t *testing.T) {
	program, err := exec.LookPath("fuse-overlayfs")
	for _, kind := range []string{"tmpfs", "dir", "read-only", "program"} {
		t.Run(kind, func(t *testing.T) {
			c := small(t, `echo hello >/etc/new && cat /etc/new /opt/extra/file && test -d /opt/extra/dir && test -e /bin/sh`)
			c.Root.Additions = []Addition{{Path: "/opt/extra/file", Content: []byte("added\n")}, {Path: "/opt/extra/dir", Dir: true}}
			c.Root.Overlay = &Overlay{Size: 1 << 20}
			want := "hello\nadded\n"
			dir := t.TempDir()
			switch kind {
			case "dir", "program":
				c.Root.Overlay.Upper, c.Root.Overlay.Work = filepath.Join(dir, map[string]string{"dir": "up,per:1", "program": "up,per"}[kind]), filepath.Join(dir, "work")
				for _, d := range []string{c.Root.Overlay.Upper, c.Root.Overlay.Work} {
					if err := os.Mkdir(d, 0o755); err != nil {
						t.Fatal(err)
					}
				}
			case "read-only":
				c.Root.Overlay.ReadOnly = true
				c.Spec.Process.Args[2] = "cat /opt/extra/file"
				want = "added\n"
			}
			if kind == "program" {
				if err != nil {
					t.Skip("needs the package fuse-overlayfs")
				}
				c.Root.Overlay.Program = program
			}
			out, status := output(t, c)
			if status.Code != 0 || out != want {
				t.Errorf("%+v: %q", status, out)
			}
			if kind == "dir" || kind == "program" {
				if b, err := os.ReadFile(filepath.Join(c.Root.Overlay.Upper, "etc/new")); err != nil || string(b) != "hello\n" {
					t.Errorf("upper directory: %q, %v", b, err)
				}
			}
		})
	}
}

// TestOverlayProgramEnds: a container does not go on without its root.
func TestOverlayProgramEnds(t *testing.T) {
	program, err := exec.LookPath("fuse-overlayfs")
	if err != nil {
		t.Skip("needs the package fuse-overlayfs")
	}
	c := small(t, `echo ready; read x`)
	stdin, _ := pipe(t)
	r, w := pipe(t)
	c.Stdin, c.Stdout = stdin, w
	c.Root.Overlay = &Overlay{Program: program}
	box := start(t, c)
	line(t, bufio.NewReader(r))
	if err := box.overlay.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	status, err := box.Wait()
	if status.Code != 137 || err == nil || !strings.Contains(err.Error(), "fuse-overlayfs") {
		t.Errorf("%+v, %v", status, err)
	}

	c = small(t, ``)
	c.Root.Overlay = &Overlay{Program: "/bin/false"}
	if _, err = Prepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "/bin/false, which serves the container's root, ended with code 1") {
		t.Errorf("%v", err)
	}
}
