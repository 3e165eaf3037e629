// Package fork makes processes that carry out a plan: the only code of Gangway that runs
// between fork and execve, and the only unsafe one.
//
//	m, err := fork.Load(p, fds)
//	child, err := m.Start()
//	rec, fd, err := fork.Receive(socket)
//
// Everything that a process needs after the fork is laid out before it by Load. What runs
// after it is a handful of functions that call nothing but system calls: they allocate
// nothing, grow no stack, hold no lock and touch no Go pointer, because the other
// threads that these might wait for are not in the new process. The new process never
// returns into Go code.
//
// Start may be called by any number of goroutines, each with its own Machine; a Machine
// is used once. The package compiles nothing and decides nothing: that is package
// runtime's.
package fork
