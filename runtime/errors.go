package runtime

import (
	"fmt"
	"strings"
	"syscall"
)

// OpError says which operation of a container failed.
type OpError struct {
	Index int    // as the plan prints it; -1 is the fork
	Call  string // the system call
	What  string // what it was for
	Errno syscall.Errno
}

// Error names the operation.
func (e *OpError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("%s %s: %v", e.Call, e.What, e.Errno)
	}
	return fmt.Sprintf("step %d, %s %s: %v", e.Index, e.Call, e.What, e.Errno)
}

// workdirNote stands behind the working directory in operations that go there.
const workdirNote = ", the working directory"

// Workdir says whether the working directory could not be entered.
func (e *OpError) Workdir() bool { return strings.HasSuffix(e.What, workdirNote) }

// Unwrap returns Errno.
func (e *OpError) Unwrap() error { return e.Errno }
