// Package runtime makes containers: a specification becomes a plan, and the plan a process
// in namespaces of its own, without privileges.
//
//	c, err := runtime.Prepare(ctx, &runtime.Config{...}) // all but the execve
//	err = c.Start()
//	status, err := c.Wait()
//	err = c.Close()
//
// A container is three kinds of processes. The caller is its supervisor. PID 1 is a fork of
// the supervisor that never executes anything: it buries the dead, hands on
// signals, and ends all others when the first process or the supervisor ends. The first
// process is PID 1's child; others come by Join and are the supervisor's children.
//
// A Container's methods may be called by any number of goroutines. The memory of the
// process is copied (lazily) by every fork, so a supervisor with a large heap
// starts containers slowly.
//
// The package pulls no image, knows no GPU and limits no resources: the specification and the
// callers of Placed and FUSE.Serve do.
package runtime
