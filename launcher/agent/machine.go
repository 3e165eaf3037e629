package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// machine is the Ground that is there.
type machine struct {
	Options
	workers sync.WaitGroup // one for each step
}

func (m *machine) Now() time.Time { return time.Now() }

// Boot implements Ground.
func (m *machine) Boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (m *machine) epochFile() string { return filepath.Join(m.Dir, "epoch") }

// Epoch implements Ground.
func (m *machine) Epoch() uint64 {
	b, err := os.ReadFile(m.epochFile())
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		m.Log.Warn("epoch cannot be read", "err", err)
	}
	return n
}

// KeepEpoch implements Ground.
func (m *machine) KeepEpoch(ctx context.Context, epoch uint64) error {
	return fsx.WriteFile(ctx, m.epochFile(), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		_, err := fmt.Fprintln(f, epoch)
		return err
	})
}

// Steps implements Ground.
func (m *machine) Steps() ([]job.StepKey, error) {
	entries, err := os.ReadDir(m.stepsDir())
	if err != nil {
		return nil, fmt.Errorf("find steps of node %s: %w", m.Node.Name, err)
	}
	var keys []job.StepKey
	for _, e := range entries {
		key, err := control.ParseDir(e.Name())
		if err != nil {
			m.Log.Warn("not a step's directory", "path", filepath.Join(m.stepsDir(), e.Name()), "err", err)
			continue
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Hands implements Ground.
func (m *machine) Hands(w *Work) Hands {
	s := m.supervisorOf(w.Key)
	s.work = w
	return s
}

// Do implements Ground.
func (m *machine) Do(ctx context.Context, w *Work) { m.workers.Go(func() { w.run(ctx) }) }

func (m *machine) supervisorOf(key job.StepKey) *supervisor {
	s := &supervisor{
		key: key, dir: filepath.Join(m.stepsDir(), control.DirOf(key)), node: m.Node.Name, marker: control.MarkerOf(m.Cluster, m.Node.Name, key),
		gangway: m.Gangway, environ: m.Environ, orphans: m.Orphans, log: m.Log, users: m.Users,
	}
	s.findOwner()
	return s
}

// markers is what markers of this node's steps begin with.
func (m *machine) markers() string { return m.Cluster + "/" + m.Node.Name + "/" }

// Strays implements Ground.
func (m *machine) Strays(lives func(job.StepKey) bool) []job.StepKey {
	stepOf := func(marker string) (job.StepKey, bool) {
		dir, _, _ := strings.Cut(strings.TrimPrefix(marker, m.markers()), "/")
		key, err := control.ParseDir(dir)
		return key, err == nil
	}
	var left []job.StepKey
	for _, pid := range kill(m.markers(), func(_ int, marker string) bool {
		key, ok := stepOf(marker)
		return ok && lives(key)
	}, slack) {
		if key, ok := stepOf(markerOf(pid)); ok {
			left = append(left, key)
		}
	}
	_ = m.removeLeftovers(nil) // the log has it, and nothing waits for it
	return left
}

// Search implements Ground.
func (m *machine) Search(ctx context.Context, id job.ID, attempt int, spare []job.StepKey, done func(string)) {
	spared := map[int]bool{}
	for _, key := range spare {
		spared[m.supervisorOf(key).pid()] = true
	}
	go func() {
		prefix := fmt.Sprintf("%s%d.%d.", m.markers(), id, attempt)
		left := kill(prefix, func(pid int, _ string) bool { return spared[pid] }, releasePatience)
		text := ""
		if len(left) > 0 {
			text = fmt.Sprintf("processes that cannot be killed: %d", left)
		}
		if n := m.Orphans.End(releasePatience); n > 0 {
			text = fmt.Sprintf("processes without a marker that cannot be killed: %d", n)
		}
		var users map[uint32]bool
		if m.Users != nil {
			users = m.Users.takeSoiled()
		}
		if err := m.removeLeftovers(users); err != nil && text == "" {
			text = err.Error()
		}
		if ctx.Err() == nil {
			done(text)
		}
	}()
}

// removeLeftovers removes what is of no process any more, of some users (nil: of all). The
// next agent tries it again.
func (m *machine) removeLeftovers(users map[uint32]bool) error {
	var err error
	switch {
	case m.Users != nil:
		err = m.cleanUsers(context.Background(), users)
	case m.Leftovers != nil:
		err = m.Leftovers()
	}
	if err != nil {
		m.Log.Error("files of containers stay", "err", err)
	}
	return err
}

// End implements Ground. Who only keeps output for clients ends too.
func (m *machine) End() {
	kill(m.markers(), nil, time.Second)
	m.Orphans.End(time.Second)
	_ = m.removeLeftovers(nil) // the log has it
}
