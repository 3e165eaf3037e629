package runtime

import (
	"context"
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
		c.Spec.Mounts = append(c.Spec.Mounts[:1:1], specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc"})
	}
	box, err := Prepare(context.Background(), c)
	if err != nil {
		return err
	}
	fmt.Println(box.Init())
	if err := box.Start(); err != nil {
		return err
	}
	_, err = box.Wait()
	return err
}

// forward is a supervisor on a terminal, its argument is a stage. At SIGUSR2 it hands on the
// SIGINT that the terminal sent to all, and then SIGUSR1, which arrives after it.
func forward(args []string) error {
	c := &Config{
		// bash may forget a trap while it reads.
		Spec: plain([]string{"/usr/bin/perl", "-e", `$| = 1; $SIG{INT} = sub { $n++; print "INT\n" }; $SIG{USR1} = sub { print "USR1\n" };
			print "ready\n"; do { $l = <STDIN> } until $l eq "end\n"; print "count $n\n"`}),
		Stage: args[0], Root: Root{Dir: "/"},
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	signal.Notify(make(chan os.Signal), syscall.SIGINT)
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
