package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// containers is what the measurements of containers share: an ordinary user with a
// store that has the images, and the same images unpacked and as one squashfs file.
type containers struct {
	*imageBench
	home string // the user's
	here *agent // on the host, as the user
	bin  string // directory with this program, which is mounted in containers

	provided map[string]bool // images that are there
}

// The images, as the registry names them.
const (
	smallImage = "five:1"  // of 5 MB
	bigImage   = "image:1" // torch
)

// inContainers prepares what a measurement of containers needs, once for all of them,
// and runs it.
func (b *bench) inContainers(images []string, measure func(c *containers) error) error {
	if b.boxes == nil {
		boxes, err := b.newContainers()
		if err != nil {
			return err
		}
		b.boxes = boxes
	}
	for _, name := range images {
		if err := b.boxes.provide(name); err != nil {
			return fmt.Errorf("provide %s: %w", name, err)
		}
	}
	return measure(b.boxes)
}

func (b *bench) newContainers() (*containers, error) {
	c := &containers{imageBench: &imageBench{bench: b, uid: os.Geteuid()}, provided: map[string]bool{}}
	if c.uid == 0 {
		c.uid = ordinaryUser
		if err := c.forOrdinaryUser(); err != nil {
			return nil, err
		}
		if err := os.Chmod("/dev/fuse", 0o666); err != nil { // as distributions have it
			return nil, err
		}
	}
	if err := c.user(); err != nil {
		return nil, err
	}
	var err error
	if c.reg, err = b.startRegistry(); err != nil {
		return nil, errors.Join(err, c.here.close())
	}
	return c, nil
}

// endContainers ends what the measurements of containers share.
func (b *bench) endContainers() error {
	if b.boxes == nil {
		return nil
	}
	b.boxes.reg.stop()
	return b.boxes.here.close()
}

// user makes the user's directories, and starts an agent.
func (c *containers) user() (err error) {
	if c.home, err = c.fresh("user"); err != nil {
		return err
	}
	if _, err := c.fresh(filepath.Join("user", "run")); err != nil {
		return err
	}
	c.store = filepath.Join(c.home, "store")
	c.bin = filepath.Join(c.dir, "agent")
	if err := os.MkdirAll(c.bin, 0o755); err != nil {
		return err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.bin, "bench"), self, 0o755); err != nil {
		return err
	}
	c.here, err = startAgent(c.asUser(filepath.Join(c.bin, "bench"), agentVerb))
	return err
}

// asUser is a command of the user.
func (c *containers) asUser(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.ctx, args[0], args[1:]...)
	cmd.Env = []string{
		"HOME=" + c.home, "PATH=" + os.Getenv("PATH"),
		"GANGWAY_RUNTIME_DIR=" + filepath.Join(c.home, "run"), "GANGWAY_STORE=" + c.store,
	}
	cmd.Dir = "/"
	if c.uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.uid), Groups: []uint32{}},
		}
	}
	return cmd
}

// provide puts an image into the registry, the user's store and, unpacked and as one
// file, into the scratch directory.
func (c *containers) provide(name string) error {
	if c.provided[name] {
		return nil
	}
	c.provided[name] = true
	switch name {
	case smallImage:
		if err := c.pushFive(); err != nil {
			return err
		}
	case bigImage:
		layout, err := c.builtImage()
		if err != nil {
			return err
		}
		if _, err := c.command("skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false",
			"oci:"+layout+":1", "docker://"+c.reg.ref(name)); err != nil {
			return err
		}
	}
	log.Printf("  pulling and unpacking %s", name)
	if _, err := measure(c.asUser(c.gangway, "image", "pull", "-q", c.reg.ref(name))); err != nil {
		return err
	}
	file := filepath.Join(c.home, "flat.sqsh")
	if _, err := measure(c.asUser(c.gangway, "image", "export", c.reg.ref(name), "--force", "-o", file)); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(file, 0o644), os.Rename(file, c.flat(name))); err != nil {
		return err
	}
	_, err := c.command("unsquashfs", "-q", "-n", "-f", "-d", c.tree(name), c.flat(name))
	syscall.Sync()
	return err
}

// flat is the image as one squashfs file, tree the directory that it is unpacked in.
func (c *containers) flat(name string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(name, ":", "-")+".sqsh")
}

func (c *containers) tree(name string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(name, ":", "-"))
}

// pushFive makes an image of a static busybox and a file, of 5 MB together.
func (c *containers) pushFive() error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d, diff, err := c.tarLayer("five", func(w *tar.Writer) error {
		put := func(h *tar.Header) error {
			h.ModTime = time.Unix(1_700_000_000, 0)
			return w.WriteHeader(h)
		}
		for _, dir := range []string{"bin", "dev", "etc", "mnt", "proc", "run", "sys", "tmp"} {
			if err := put(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
				return err
			}
		}
		if err := put(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(busybox))}); err != nil {
			return err
		}
		if _, err := w.Write(busybox); err != nil {
			return err
		}
		for _, name := range []string{"true", "sh", "sleep"} {
			if err := put(&tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}); err != nil {
				return err
			}
		}
		size := max(5_000_000-int64(len(busybox)), 1)
		if err := put(&tar.Header{Name: "data", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.CopyN(w, rand.NewChaCha8([32]byte{5}), size)
		return err
	})
	if err != nil {
		return err
	}
	return c.reg.pushImage("five", "1", []descriptor{d}, []string{diff})
}

// run is a gangway run of a command.
func (c *containers) run(image string, options []string, command ...string) []string {
	args := append([]string{c.gangway, "run", "-q", "--container-image=" + c.reg.ref(image)}, options...)
	return append(append(args, "--"), command...)
}

// bwrap is a bubblewrap of a command with the namespaces that gangway makes.
func (c *containers) bwrap(root string, options []string, command ...string) []string {
	args := []string{
		"bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc",
		"--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
	}
	return append(append(args, options...), command...)
}

// A backing is a way to have an image's root file system, with an agent in it.
type backing struct {
	name  string
	start func() (*agent, error)
}

// backings are Gangway's and its peers'.
func (c *containers) backings(image string) []backing {
	inside := []string{"/mnt/bench", agentVerb}
	bwrap := func(root string) *exec.Cmd {
		return c.asUser(c.bwrap(root, []string{"--ro-bind", c.bin, "/mnt"}, inside...)...)
	}
	return []backing{
		{"gangway", func() (*agent, error) {
			return startAgent(c.asUser(c.run(image, []string{"--container-mounts=" + c.bin + ":/mnt:ro"}, inside...)...))
		}},
		{"squashfuse_ll", func() (*agent, error) {
			dir, unmount, err := c.mountByFUSE(image)
			if err != nil {
				return nil, err
			}
			return agentOn(bwrap(dir), unmount)
		}},
		{"kernel squashfs", func() (*agent, error) {
			dir := filepath.Join(c.dir, "kernel")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
			if _, err := c.command("mount", "-t", "squashfs", "-o", "loop,ro", c.flat(image), dir); err != nil {
				return nil, err
			}
			return agentOn(bwrap(dir), func() error {
				_, err := c.command("umount", dir)
				return err
			})
		}},
		{"ext4, unpacked", func() (*agent, error) { return startAgent(bwrap(c.tree(image))) }},
	}
}

func agentOn(cmd *exec.Cmd, unmount func() error) (*agent, error) {
	a, err := startAgent(cmd)
	if err != nil {
		return nil, errors.Join(err, unmount())
	}
	a.end = append(a.end, unmount)
	return a, nil
}

// mountByFUSE mounts an image with squashfuse_ll. Root does it, for everybody, because
// fusermount refuses users without a name.
func (c *containers) mountByFUSE(image string) (dir string, unmount func() error, err error) {
	dir = filepath.Join(c.dir, "mnt-ll")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	var before, now syscall.Stat_t
	if err := syscall.Stat(dir, &before); err != nil {
		return "", nil, err
	}
	server := exec.CommandContext(c.ctx, "squashfuse_ll", "-f", "-o", "allow_other", c.flat(image), dir)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	unmount = func() error {
		_, err := c.command("umount", dir)
		return errors.Join(err, server.Wait())
	}
	for range 1000 {
		if err := syscall.Stat(dir, &now); err == nil && now.Dev != before.Dev {
			return dir, unmount, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = server.Process.Kill()
	return "", nil, errors.Join(fmt.Errorf("squashfuse_ll does not mount %s", c.flat(image)), server.Wait())
}
