package agent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// TestUsersWord: of what a user has put into his directory the agent takes a plain file of
// his, of bounded size, and nothing else; it does not wait for what never comes.
func TestUsersWord(t *testing.T) {
	t.Parallel()
	dir, uid := t.TempDir(), uint32(os.Geteuid())
	path := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(path("good"), []byte(`{"Node":"n1"}`), 0o600))
	must(os.WriteFile(path("garbage"), []byte(`{"Node":`), 0o600))
	must(os.WriteFile(path("long"), nil, 0o600))
	must(os.Truncate(path("long"), control.MaxLine+1))
	must(os.Symlink("good", path("link")))
	must(syscall.Mkfifo(path("fifo"), 0o600))
	must(os.Mkdir(path("directory"), 0o700))
	if end, err := readAs[job.StepEnd](path("good"), uid); err != nil || end.Node != "n1" {
		t.Errorf("good: %+v, %v", end, err)
	}
	for _, name := range []string{"garbage", "long", "link", "fifo", "directory", "missing"} {
		if end, err := readAs[job.StepEnd](path(name), uid); err == nil {
			t.Errorf("%s is %+v", name, end)
		}
	}
	if end, err := readAs[job.StepEnd](path("good"), uid+1); err == nil || !strings.Contains(err.Error(), "not a file of user") {
		t.Errorf("of somebody else: %+v, %v", end, err)
	}
}

// TestUsersSocket: the agent connects to a socket that is the user's, and follows no link to
// another one.
func TestUsersSocket(t *testing.T) {
	t.Parallel()
	uid := uint32(os.Geteuid())
	his, hers := t.TempDir(), t.TempDir()
	l, err := control.Listen(hers)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := control.DialAs(hers, uid); err != nil {
		t.Errorf("her own: %v", err)
	} else {
		_ = c.Close()
	}
	if _, err := control.DialAs(hers, uid+1); err == nil || !strings.Contains(err.Error(), "is not a socket of user") {
		t.Errorf("of another user: %v", err)
	}
	if err := os.Symlink(filepath.Join(hers, control.SocketFile), filepath.Join(his, control.SocketFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := control.DialAs(his, uid); err == nil {
		t.Error("a link to another step's socket is followed")
	}
	_ = l.SetDeadline(time.Now())
	for { // what connected before is there; nobody else came
		c, err := l.Accept()
		if err != nil {
			if e, ok := err.(net.Error); !ok || !e.Timeout() {
				t.Errorf("accept: %v", err)
			}
			return
		}
		_ = c.Close()
	}
}

// TestForeignKey: what a step says of its end is of that step, whatever it names.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	mine := key()
	other := job.StepKey{Job: mine.Job + 1, Attempt: 1, Step: job.BatchStep, Try: 1}
	for name, in := range map[string]any{
		"said":    eventIn{control.Event{Ended: &job.StepEnd{Key: other, Node: "n9"}}},
		"written": goneIn{&job.StepEnd{Key: other, Node: "n9"}},
		"found":   foundIn{end: job.StepEnd{Key: other, Node: "n9"}},
	} {
		l, _ := life{key: mine, node: "n1", phase: running}.step(in, time.Now())
		if l.end.Key != mine || l.end.Node != "n1" || l.phase != ended {
			t.Errorf("%s: the end is of step %s on %s", name, l.end.Key, l.end.Node)
		}
	}
}
