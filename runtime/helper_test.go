package runtime

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

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

// forward is a supervisor on a terminal that hands on what it gets: its argument is a stage.
func forward(args []string) error {
	c := &Config{
		Spec: plain([]string{"/bin/bash", "-c", `n=0; trap 'n=$((n+1)); echo INT' INT; echo ready
			while read -t 0.01 x; [ "$x" != end ]; do :; done; echo count $n`}),
		Stage: args[0], Root: Root{Dir: "/"},
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	got := make(chan os.Signal, 10)
	signal.Notify(got, syscall.SIGINT)
	box, err := Prepare(context.Background(), c)
	if err != nil {
		return err
	}
	go func() {
		for range got {
			// Long after the terminal's own has arrived.
			time.Sleep(100 * time.Millisecond)
			_ = box.Signal(syscall.SIGINT)
			time.Sleep(100 * time.Millisecond)
			fmt.Println("forwarded")
		}
	}()
	if err := box.Start(); err != nil {
		return err
	}
	_, err = box.Wait()
	return err
}
