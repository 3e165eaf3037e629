package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// starter starts processes that end with this one, also where it is killed. The kernel tells a
// child of the end of the thread that started it, so one thread starts all.
type starter struct{ work chan func() }

func newStarter() *starter {
	s := &starter{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.work {
			f()
		}
	}()
	return s
}

// begin starts a process on the thread that lives as long as this program.
func (s *starter) begin(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	s.work <- func() { started <- cmd.Start() }
	return <-started
}

// daemon is a process that runs until it is ended.
type daemon struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // once done
}

// start starts a process, whose output goes to a file. It has a process group of its own, so
// that Ctrl-C reaches this process only, and gets a signal when this process dies.
func (s *starter) start(name string, cmd *exec.Cmd, log string, dies syscall.Signal) (*daemon, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, dies
	if err := s.begin(cmd); err != nil {
		return nil, err
	}
	b := &daemon{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		b.err = cmd.Wait()
		close(b.done)
	}()
	return b, nil
}

// end ends it with a signal, and kills it when that takes too long.
func (b *daemon) end(sig syscall.Signal, patience time.Duration) error {
	if b == nil {
		return nil
	}
	_ = b.cmd.Process.Signal(sig) // it may have ended
	select {
	case <-b.done:
		return nil
	case <-time.After(patience):
	}
	_ = b.cmd.Process.Kill()
	<-b.done
	return errors.New(b.name + " did not end and was killed")
}
