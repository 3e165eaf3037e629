// Command vm runs the tests that need a kernel to themselves in a virtual machine: cgroup
// version 2 with all controllers, device filters and systemd's user manager, as root and
// as an ordinary user. gangway itself runs there as well (gangway.sh).
//
//	go run ./test/vm            (make test-vm)
//	go run ./test/vm -run Memory
//
// It builds the machine of Debian packages, which apt-get downloads once into the cache
// directory: a kernel, busybox and systemd, in an initramfs with our test programs. QEMU
// runs it without hardware support (TCG), so that it works inside virtual machines; a
// minute is enough. Nothing is installed, and nothing of this machine is changed. It needs
// qemu-system-x86_64 and Debian's apt-get and dpkg-deb, and says which is missing.
//
// It starts other programs one after the other and has no state but its cache.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	cache := flag.String("cache", "bin/vm", "directory for packages, the machine and what it printed")
	run := flag.String("run", "^Test(Group|None|FilterAbove)", "the tests, as in go test -run")
	patience := flag.Duration("timeout", 4*time.Minute, "how long the machine may run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := main1(ctx, *cache, *run, *patience); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func main1(ctx context.Context, cache, run string, patience time.Duration) error {
	for program, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "apt-get": "apt", "dpkg-deb": "dpkg"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not here: apt-get install --no-install-recommends %s", program, pkg)
		}
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return err
	}
	began := time.Now()
	root, err := packages(ctx, filepath.Join(cache, "debs"), filepath.Join(cache, "root"))
	if err != nil {
		return err
	}
	tests := filepath.Join(cache, "cgroup.test")
	if err := command(ctx, ".", "go", "test", "-c", "-o", tests, "./runtime/cgroup"); err != nil {
		return fmt.Errorf("build tests: %w", err)
	}
	gangway := filepath.Join(cache, "gangway")
	if err := command(ctx, ".", "go", "build", "-o", gangway, "./cmd/gangway"); err != nil {
		return fmt.Errorf("build program: %w", err)
	}
	initramfs := filepath.Join(cache, "initramfs")
	if err := machine(initramfs, root, tests, gangway, run); err != nil {
		return fmt.Errorf("build machine: %w", err)
	}
	fmt.Printf("vm: built in %.1f s\n", time.Since(began).Seconds())
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return boot(ctx, root, initramfs, filepath.Join(cache, "log"))
}

// command runs a program with a static Go build as the tests have to be.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "LC_ALL=C")
	return cmd.Run()
}
