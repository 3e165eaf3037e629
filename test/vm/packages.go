package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// wanted are the packages that the machine is made of, besides the kernel. The
// libraries of systemd are found as their dependencies.
var wanted = []string{"busybox-static", "systemd"}

// needless are dependencies that nothing here executes.
var needless = []string{"adduser", "passwd", "perl-base", "debconf", "util-linux", "mount", "login", "bash", "coreutils", "dpkg", "tar", "libpam-modules", "libpam-runtime", "libpam-modules-bin", "gcc-12-base"}

// packages downloads what the machine is made of into debs, unpacks it into root, and
// returns root. What is there already is not fetched again: remove the directory to
// have a newer kernel.
func packages(ctx context.Context, debs, root string) (string, error) {
	done := filepath.Join(root, ".complete")
	if _, err := os.Stat(done); err == nil {
		return root, nil
	}
	if err := errors.Join(os.RemoveAll(root), os.RemoveAll(debs), os.MkdirAll(debs, 0o755), os.MkdirAll(root, 0o755)); err != nil {
		return "", err
	}
	kernel, err := depends(ctx, "linux-image-cloud-amd64")
	if err != nil {
		return "", err
	}
	names := slices.DeleteFunc(kernel, func(n string) bool { return !strings.HasPrefix(n, "linux-image-") })
	if len(names) == 0 {
		return "", errors.New("find kernel: apt-cache knows no linux-image-cloud-amd64: apt-get update")
	}
	for _, name := range wanted {
		more, err := closure(ctx, name)
		if err != nil {
			return "", err
		}
		names = append(names, more...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	fmt.Println("vm: fetching", strings.Join(names, " "))
	// apt-get as root becomes _apt, who may not write here.
	if err := command(ctx, debs, "apt-get", append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, names...)...); err != nil {
		return "", fmt.Errorf("download packages: %w (apt-get update first?)", err)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, deb := range files {
		if err := command(ctx, debs, "dpkg-deb", "-x", deb, root); err != nil {
			return "", fmt.Errorf("unpack %s: %w", deb, err)
		}
	}
	return root, os.WriteFile(done, nil, 0o644)
}

// closure is name and all that it depends on, without what is needless.
func closure(ctx context.Context, name string) ([]string, error) {
	all := []string{name}
	for i := 0; i < len(all); i++ {
		next, err := depends(ctx, all[i])
		if err != nil {
			return nil, err
		}
		for _, n := range next {
			if !slices.Contains(all, n) && !slices.Contains(needless, n) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// depends lists the real packages that name depends on; of alternatives the first.
func depends(ctx context.Context, name string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", name).Output()
	if err != nil {
		return nil, fmt.Errorf("ask what %s depends on: %w", name, err)
	}
	var all []string
	alternative := false
	for line := range strings.Lines(string(out)) {
		kind, dep, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.TrimPrefix(kind, "|") != "Depends" && strings.TrimPrefix(kind, "|") != "PreDepends" {
			continue
		}
		if !alternative && !strings.HasPrefix(dep, "<") {
			all = append(all, strings.TrimSpace(dep))
		}
		alternative = strings.HasPrefix(kind, "|")
	}
	return all, nil
}
