package step

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// usage asks for what the ranks have used, as a client does.
func (s *testStep) usage() []job.RankUsage {
	s.t.Helper()
	c := s.dial()
	defer c.Close()
	if err := c.Send(control.Request{Usage: true}); err != nil {
		s.t.Fatal(err)
	}
	var e control.Event
	if err := c.Receive(&e); err != nil || e.Refused != "" {
		s.t.Fatalf("%v: %+v", err, e)
	}
	return e.Usage
}

// TestUsage: what ranks use is told while they run, with their processes, and of those that do
// not run there is nothing.
func TestUsage(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		s := start(t, command(spec(2), "child", "spin=300ms", "file=/proc/self/stat", "memory=20", "sleep=1m"))
		if got := s.usage(); len(got) != 0 {
			t.Errorf("before START: %+v", got)
		}
		s.begin()
		var got []job.RankUsage
		whole := func() bool {
			for _, u := range got {
				if u.User+u.System < 300 || u.RSS < 20<<20 || len(u.PIDs) != 2 {
					return false
				}
			}
			return len(got) == 2
		}
		for deadline := time.Now().Add(time.Minute); !whole() && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			got = s.usage()
		}
		if !whole() {
			t.Fatalf("%+v", got)
		}
		for i, u := range got {
			if u.Rank != i || u.Node != "n1" || u.Virtual < u.RSS || u.RSS > 2<<30 || u.User+u.System > 60_000 {
				t.Errorf("%+v", u)
			}
			if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(u.PIDs[0]))); err != nil {
				t.Errorf("process %d is none: %v", u.PIDs[0], err)
			}
		}
		s.send(control.Request{Kill: &control.Kill{GraceMS: 1}})
		s.ended()
	})
}

// TestMeasure: of a process that has ended there is nothing, which is no error.
func TestMeasure(t *testing.T) {
	u := job.RankUsage{PIDs: []int{1 << 30}}
	if measure(&u); u.RSS != 0 || u.User != 0 || len(u.PIDs) != 1 {
		t.Errorf("%+v", u)
	}
	own := job.RankUsage{PIDs: []int{os.Getpid()}}
	if measure(&own); own.RSS < 1<<20 || own.Virtual < own.RSS || own.Read == 0 {
		t.Errorf("%+v", own)
	}
	if got := fields("/proc/self/status", "State", "Threads", "none"); got[0] != 0 || got[1] == 0 || got[2] != 0 {
		t.Errorf("%v", got)
	}
}
