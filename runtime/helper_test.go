package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// supervise is a supervisor that a test kills: its arguments are a run directory, a root,
// and whether there is a pid namespace.
func supervise(args []string) error {
	run, root, pidns := args[0], args[1], args[2] == "true"
	c := &Config{
		Spec:   plain([]string{"/bin/sh", "-c", "sleep 1000 & sleep 1001 & echo ready; wait"}),
		Stage:  filepath.Join(run, "stage"),
		Root:   Root{FUSE: loopback(root)},
		Stdout: os.Stdout,
		Orphan: Orphan{
			Message: "the supervisor is gone\n",
			Remove:  []string{filepath.Join(run, "state"), filepath.Join(run, "stage"), run},
		},
	}
	c.Spec.Mounts = append([]specs.Mount{{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"ro"}}}, c.Spec.Mounts...)
	if !pidns {
		c.Spec.Linux.Namespaces = nil
		c.Spec.Mounts[1] = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc"}
	}
	box, err := Prepare(context.Background(), c)
	if err != nil {
		return err
	}
	fmt.Println(box.Init())
	if err := box.Start(); err != nil {
		return err
	}
	joined := "setsid sleep 1002 & echo joined; exec sleep 1003"
	if _, err := box.Join(context.Background(), JoinProcess{Args: []string{"/bin/sh", "-c", joined}, Env: c.Spec.Process.Env, Stdout: os.Stdout}); err != nil {
		return err
	}
	status, err := box.Wait()
	return errors.Join(fmt.Errorf("the container ended: %+v", status), err)
}

// forward is a supervisor on a terminal, its argument is a stage. At SIGUSR2 it hands on the
// SIGINT that the terminal sent to all, and then SIGUSR1, which arrives after it.
func forward(args []string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	c := &Config{
		Spec: plain([]string{"/proc/self/fd/3"}), Pass: []*os.File{self},
		Stage: args[0], Root: Root{Dir: "/"},
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	c.Spec.Process.Env = append(c.Spec.Process.Env, helperVariable+"=counter")
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	got := make(chan os.Signal, 10)
	signal.Notify(got, syscall.SIGUSR2)
	box, err := Prepare(context.Background(), c)
	if err != nil {
		return err
	}
	go func() {
		for range got {
			_, _ = box.Signal(syscall.SIGINT), box.Signal(syscall.SIGUSR1)
		}
	}()
	if err := box.Start(); err != nil {
		return err
	}
	_, err = box.Wait()
	return err
}

// counter counts the SIGINTs that it gets until a line is typed. A shell will not do:
// those at hand forget a trap now and then while they read.
func counter() error {
	n := 0
	got, end := make(chan os.Signal, 10), make(chan error)
	signal.Notify(got, syscall.SIGINT, syscall.SIGUSR1)
	fmt.Println("ready")
	go func() {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		end <- err
	}()
	for {
		select {
		case s := <-got:
			if s == syscall.SIGINT {
				n++
			}
			fmt.Println(s)
		case err := <-end:
			fmt.Println("count", n)
			return err
		}
	}
}
