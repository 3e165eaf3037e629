package step

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

const (
	// progressEvery is how often it is said that a prepare goes on.
	progressEvery = 5 * time.Second
	// pulledEvery is how often it is said how much of an image there is.
	pulledEvery = 500 * time.Millisecond
	pullPhase   = "pull image"
)

// tellProgress replaces what was said of the prepare.
func (s *supervisor) tellProgress(p control.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress = p
	s.moves++
	s.wake()
}

// tellPulled tells how much of an image there is. What has not moved is not told again: the
// agent ends a prepare that moves no more.
func (s *supervisor) tellPulled(done, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := control.Progress{Phase: pullPhase, Bytes: done, Total: total}
	if p == s.progress || time.Since(s.pulled) < pulledEvery && done < total {
		return
	}
	s.progress, s.pulled = p, time.Now()
	s.moves++
	s.wake()
}

// tellWork repeats what was said of the prepare as long as this process does something for
// it: what only waits, as for a registry that does not answer, has no progress.
func (s *supervisor) tellWork(stop <-chan struct{}) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	done := workOf("/proc/self/io")
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		now := workOf("/proc/self/io")
		if now.isMore(done) {
			s.mu.Lock()
			p := s.progress
			s.mu.Unlock()
			s.tellProgress(p)
		}
		done = now
	}
}

// work is what a process has done so far.
type work struct {
	cpu   time.Duration // its own, and that of children that have ended
	bytes int64         // read and written
}

// The work that counts, in one tick: to look at oneself, and to say something, is less.
const (
	leastTime  = 100 * time.Millisecond
	leastBytes = 256 << 10
)

func (w work) isMore(than work) bool {
	return w.cpu-than.cpu >= leastTime || w.bytes-than.bytes >= leastBytes
}

// workOf is the work of this process; io is its /proc/PID/io, which a kernel may not have.
func workOf(io string) work {
	var w work
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if unix.Getrusage(who, &r) == nil {
			w.cpu += time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	b, err := os.ReadFile(io)
	if err != nil {
		return w
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && (name == "rchar" || name == "wchar") {
			w.bytes += n
		}
	}
	return w
}

// usage is what the processes of the step have used that are waited for, which are all.
func usage() job.Usage {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &r) != nil {
		return job.Usage{}
	}
	ms := func(t unix.Timeval) job.Duration { return job.Duration(t.Nano() / 1e6) }
	const block = 512 // as getrusage(2) counts
	return job.Usage{User: ms(r.Utime), System: ms(r.Stime), MaxRSS: r.Maxrss << 10, Read: r.Inblock * block, Write: r.Oublock * block}
}
