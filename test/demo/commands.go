package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// show runs a command and shows what it prints.
func (d *demo) show(cmd *exec.Cmd) error {
	d.say.typed(append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...))
	return d.printed(cmd, nil)
}

// printed is show without the command itself; hook, which may be nil, sees each line.
func (d *demo) printed(cmd *exec.Cmd, hook func(string)) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	err = d.starter.begin(cmd)
	_ = w.Close() // the program has it
	if err != nil {
		return err
	}
	d.say.lines(r, hook)
	return cmd.Wait()
}

// user is a command that the user types, in a directory.
func (d *demo) user(ctx context.Context, dir string, args ...string) *exec.Cmd {
	path := filepath.Join(d.dir, "slurm", args[0])
	if _, err := os.Lstat(path); err != nil {
		path = filepath.Join(d.bin, args[0])
	}
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Dir, cmd.Env = dir, d.env
	return cmd
}

// types shows a command of the user and what it prints.
func (d *demo) types(ctx context.Context, args ...string) error {
	return d.show(d.user(ctx, d.dir, args...))
}

// asks is the output of a command of the user, which is not shown.
func (d *demo) asks(ctx context.Context, args ...string) (string, error) {
	cmd := d.user(ctx, d.dir, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// environ is that of the user's commands: this one's, without what is of other clusters.
func (d *demo) environ(more ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GANGWAY_") && !strings.HasPrefix(v, "SLURM_") && !strings.HasPrefix(v, "PATH=") {
			env = append(env, v)
		}
	}
	return append(env, append(more, "PATH="+filepath.Join(d.dir, "slurm")+":"+d.bin+":"+os.Getenv("PATH"), "GANGWAY_STORE="+filepath.Join(d.dir, "store"))...)
}
