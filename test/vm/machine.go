package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// initScript is the machine's first process.
//
//go:embed init.sh
var initScript string

// gangwayScript runs gangway in it.
//
//go:embed gangway.sh
var gangwayScript string

// machine writes the initramfs: packages, our tests and program, and what runs them.
func machine(to, root, tests, gangway, run string) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a := &archive{w: bufio.NewWriterSize(f, 1<<20), seen: map[string]bool{"etc/passwd": true, "etc/group": true}}
	heavy := []string{
		".complete", "boot", "usr/lib/modules", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/i18n",
		"usr/share/zoneinfo", "usr/share/bash-completion", "usr/lib/x86_64-linux-gnu/gconv",
	}
	if err := a.tree(root, func(name string) bool { return slices.Contains(heavy, name) }); err != nil {
		return err
	}
	for _, module := range []string{"fuse/fuse.ko", "overlayfs/overlay.ko"} {
		found, err := filepath.Glob(filepath.Join(root, "lib/modules/*/kernel/fs", module))
		if err != nil || len(found) == 0 {
			return fmt.Errorf("find kernel's module %s: %w", module, os.ErrNotExist)
		}
		if err := a.file(filepath.Base(module), found[0]); err != nil {
			return err
		}
	}
	return errors.Join(
		a.once("etc", a.dir),
		a.text("gangway.sh", gangwayScript, 0o755),
		a.file("usr/bin/gangway", gangway),
		a.layout("image", filepath.Join(root, "bin/busybox")),
		a.text("init", initScript, 0o755),
		a.text("tests", "#!/bin/sh\nexec /cgroup.test -test.v -test.timeout 100s -test.run '"+strings.ReplaceAll(run, "'", "")+"'\n", 0o755),
		a.text("etc/passwd", "root::0:0::/root:/bin/sh\nuser::1000:1000::/tmp:/bin/sh\n", 0o644),
		a.text("etc/group", "root:x:0:\nuser:x:1000:\n", 0o644),
		a.file("cgroup.test", tests),
		a.end(),
	)
}

// boot runs the machine, shows what it prints, and judges it.
func boot(ctx context.Context, root, initramfs, log string) error {
	kernels, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil || len(kernels) == 0 {
		return fmt.Errorf("find kernel in %s: %w", root, os.ErrNotExist)
	}
	began := time.Now()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio", "-kernel", kernels[0], "-initrd", initramfs,
		"-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all psi=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &out), os.Stderr
	err = cmd.Run()
	if err := os.WriteFile(log, out.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Printf("vm: ran %.1f s\n", time.Since(began).Seconds())
	if ctx.Err() != nil {
		return fmt.Errorf("run machine: %w; what it printed is in %s", ctx.Err(), log)
	}
	if err != nil {
		return fmt.Errorf("run machine: %w", err)
	}
	return judge(out.String())
}

// judge reads what the machine printed: each part says how it ended, and skips nothing
// that it did not expect to.
func judge(out string) error {
	var errs []error
	results := regexp.MustCompile(`(?m)^VM-PART (\S+) status (\d+)\r?$`).FindAllStringSubmatch(out, -1)
	for _, r := range results {
		if r[2] != "0" {
			errs = append(errs, fmt.Errorf("part %q failed", r[1]))
		}
	}
	if root, _, _ := strings.Cut(out, "VM-PART root status"); strings.Contains(root, "--- SKIP") {
		errs = append(errs, errors.New("root skipped a test"))
	}
	for _, line := range regexp.MustCompile(`(?m)^VM-CHECK .* failed.*$`).FindAllString(out, -1) {
		errs = append(errs, errors.New(strings.TrimSpace(line)))
	}
	for _, part := range []string{"root", "inside", "delegated", "systemd", "none", "gangway-root", "gangway-inside", "gangway-delegated", "gangway-systemd", "gangway-none"} {
		if !slices.ContainsFunc(results, func(r []string) bool { return r[1] == part }) {
			errs = append(errs, fmt.Errorf("part %q did not end", part))
		}
	}
	return errors.Join(errs...)
}
