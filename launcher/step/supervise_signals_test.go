package step

import (
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// TestSuperviseEarlySignals: ranks get the signals that came before they ran; one that is to
// end them ends the step instead.
func TestSuperviseEarlySignals(t *testing.T) {
	t.Parallel()
	t.Run("kept", func(t *testing.T) {
		t.Parallel()
		s := supervise(t, stepSpec(2, "sleep", "60"))
		s.send(control.Request{Signal: int(syscall.SIGUSR1), SignalID: 3})
		s.begin()
		if end := s.ended(); end.Fault != nil || end.Ranks[0].Signal != int(syscall.SIGUSR1) || end.Ranks[1].Signal != int(syscall.SIGUSR1) {
			t.Errorf("end %+v, %+v", end, end.Fault)
		}
	})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			s := supervise(t, command(stepSpec(1), "sleep=1m"))
			s.send(control.Request{Signal: int(sig)})
			end := s.kept()
			if f := end.Fault; f == nil || f.Node || f.Code != 128+int(sig) || !strings.HasPrefix(f.What, "the step was ended before it started: it was sent SIG") {
				t.Errorf("end %+v, %+v", end, end.Fault)
			}
		})
	}
}

// TestSuperviseSignalTwice: a signal that is sent again, with the number that it had, or a lower
// one, is not the ranks' again.
func TestSuperviseSignalTwice(t *testing.T) {
	t.Parallel()
	script := "trap 'echo got' USR1; trap 'exit 3' USR2; trap 'exit 4' HUP; echo ready; while :; do sleep 0.05; done"
	s := supervise(t, stepSpec(1, "/bin/sh", "-c", script))
	c := s.io(stdio.Hello{Primary: true, Follow: true})
	s.begin()
	says := func(word string) {
		t.Helper()
		for {
			f, err := c.r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(f.Data), word) {
				return
			}
		}
	}
	says("ready")
	s.send(control.Request{Signal: int(syscall.SIGUSR1), SignalID: 5})
	says("got")
	s.send(control.Request{Signal: int(syscall.SIGUSR2), SignalID: 5})
	s.send(control.Request{Signal: int(syscall.SIGUSR2), SignalID: 4})
	s.send(control.Request{Signal: int(syscall.SIGUSR1), SignalID: 6})
	says("got")
	s.send(control.Request{Signal: int(syscall.SIGHUP)})
	if end := s.ended(); end.Ranks[0].Exit != 4 {
		t.Errorf("end %+v", end.Ranks)
	}
}
