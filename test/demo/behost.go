package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// beHost is the first process of a host: it gives the host its name and a /proc of its own,
// waits for its network, starts the daemon, and reaps what others leave to it. It ends with the
// daemon.
func beHost(args []string) int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	daemon, err := bootHost(args[0], args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "host %s: %v\n", args[0], err)
		return 1
	}
	for s := range signals {
		if s != syscall.SIGCHLD {
			_ = daemon.Signal(s) // it may have ended
			continue
		}
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if pid <= 0 {
				break
			}
			if pid == daemon.Pid {
				return status.ExitStatus()
			}
		}
	}
	return 0
}

func bootHost(name string, command []string) (*os.Process, error) {
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return nil, fmt.Errorf("set host name: %w", err)
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("keep mounts to itself: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount /proc: %w", err)
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until the network is there
		return nil, fmt.Errorf("wait for the network: %w", err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	return cmd.Process, nil
}
