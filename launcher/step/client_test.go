package step

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newListener makes the directory of a run within base, and its socket.
func newListener(t *testing.T, base string) (*runDir, *net.UnixListener) {
	t.Helper()
	d, err := newRunDir(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return d, l
}

// TestExecUnanswered: who waits for a supervisor that does nothing is told after a while,
// and can be told to end before that.
func TestExecUnanswered(t *testing.T) {
	d, _ := newListener(t, filepath.Join(t.TempDir(), "run"))
	if err := d.publish(&State{ID: d.id(), Name: "deaf", Supervisor: 4711}); err != nil {
		t.Fatal(err)
	}
	// More than a socket takes that nobody reads from.
	o := ExecOptions{Args: []string{"true", strings.Repeat("x", 4<<20)}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	for _, args := range [][]string{{"true"}, o.Args} {
		o.Args, o.patience = args, 0
		why := errors.New("nobody wants it")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		start := time.Now()
		if err := Exec(ctx, d.path, o); !errors.Is(err, why) || time.Since(start) > answerTime/2 {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		o.patience = 50 * time.Millisecond
		if err := Exec(t.Context(), d.path, o); err == nil || !strings.Contains(err.Error(), "container deaf: its supervisor does not answer") {
			t.Error(err)
		}
	}
}

// TestExecOverdue: a command whose time is over gets the signal that its image asks for.
func TestExecOverdue(t *testing.T) {
	d, l := newListener(t, filepath.Join(t.TempDir(), "run"))
	if err := d.publish(&State{ID: d.id(), StopSignal: int(syscall.SIGQUIT)}); err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	go func() { got <- endedBy(l) }()
	o := ExecOptions{Args: []string{"sleep"}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Timeout: time.Millisecond}
	if err := Exec(t.Context(), d.path, o); err == nil || !strings.Contains(err.Error(), "ran longer") {
		t.Error(err)
	}
	if s := <-got; s != int(syscall.SIGQUIT) {
		t.Errorf("signal %d", s)
	}
}

// endedBy is a supervisor that says which signal its command got, as which it ends; 0 if
// none came.
func endedBy(l *net.UnixListener) int {
	c, err := l.AcceptUnix()
	if err != nil {
		return 0
	}
	defer c.Close()
	files, err := receive(c, &execRequest{}, 3)
	closeAll(files)
	var s execSignal
	if err == nil {
		err = send(c, execReply{PID: 1})
	}
	if err == nil {
		_, err = receive(c, &s, 0)
	}
	status := 0
	if err == nil {
		err = send(c, execReply{Exit: &status})
	}
	if err != nil {
		return 0
	}
	return s.Signal
}
