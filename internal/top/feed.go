package top

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/attach"
)

// How long what happened is gathered before more is asked for, how often that is done when
// nothing happens, and how often a running job is measured.
const (
	gather  = 200 * time.Millisecond
	refresh = 3 * time.Second
	measure = time.Second
	again   = time.Second // after the controller has gone
)

// tailBytes is how much of the end of an output is read, and tailLines how much of that is shown
// at most.
const (
	tailBytes = 32 << 10
	tailLines = 200
)

// feed asks the cluster, and sends what it hears.
type feed struct {
	client *api.Client
	asks   chan selection // the last one only
	mu     sync.Mutex     // of asks
}

// selects says of which job more is wanted.
func (f *feed) selects(s selection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.asks:
	default:
	}
	f.asks <- s
}

// run goes on until ctx ends.
func (f *feed) run(ctx context.Context, send func(tea.Msg)) {
	var all sync.WaitGroup
	events := make(chan api.Event, 1024)
	all.Go(func() { f.watch(ctx, events, send) })
	all.Go(func() { f.list(ctx, events, send) })
	all.Go(func() { f.look(ctx, send) })
	all.Wait()
}

// watch has the controller push what happens to jobs, again and again where it goes away.
func (f *feed) watch(ctx context.Context, events chan<- api.Event, send func(tea.Msg)) {
	for ctx.Err() == nil {
		first := true
		err := f.client.Watch(ctx, &api.Query{}, func(e *api.Event) bool {
			if first {
				first = false
				send(away{})
			}
			select {
			case events <- *e:
				return true
			case <-ctx.Done():
				return false
			}
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("the controller has ended the watch")
		}
		send(away{err})
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// list hands events on, and asks after them for what is not pushed.
func (f *feed) list(ctx context.Context, events <-chan api.Event, send func(tea.Msg)) {
	due := time.NewTimer(0)
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			batch := []api.Event{e}
			for more := true; more; {
				select {
				case e := <-events:
					batch = append(batch, e)
				default:
					more = false
				}
			}
			send(happened{batch})
			due.Reset(gather)
		case now := <-ticks.C:
			send(clock{now})
		case <-due.C:
			f.ask(ctx, send)
			due.Reset(refresh)
		}
	}
}

// ask asks for nodes, and for the jobs, of which the expected starts change without an event.
func (f *feed) ask(ctx context.Context, send func(tea.Msg)) {
	nodes, err := f.client.Nodes(ctx)
	if err != nil {
		return // the watch says it
	}
	jobs, err := f.client.Jobs(ctx, &api.Query{})
	if err != nil {
		return
	}
	ping, err := f.client.Ping(ctx)
	if err != nil {
		return
	}
	send(listed{nodes.Items, jobs.Items, ping.Cluster})
}

// look measures the selected job, and reads the end of its output.
func (f *feed) look(ctx context.Context, send func(tea.Msg)) {
	var s selection
	ticks := time.NewTicker(measure)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-f.asks:
			if next.job.ID == s.job.ID && next.job.Attempt == s.job.Attempt && s.job.Output != "" {
				next.job.Output = s.job.Output
			} else if whole, err := f.client.Job(ctx, next.job.ID); err == nil { // lists do not name files
				next.job.Output = whole.Output
				send(read(&next.job))
			}
			s = next
		case now := <-ticks.C:
			if s.job.ID == 0 {
				continue
			}
			send(read(&s.job))
			for i := range s.steps {
				f.measure(ctx, &s.steps[i], now, send)
			}
		}
	}
}

// measure asks what the ranks of a step that runs have used.
func (f *feed) measure(ctx context.Context, s *api.Step, now time.Time, send func(tea.Msg)) {
	if s.Phase != "running" || s.Key.Step == job.BatchStep {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, measure)
	defer cancel()
	ranks, _ := attach.Usage(ctx, s) // of those that answer
	if len(ranks) > 0 {
		send(used{s.Key, ranks, now})
	}
}

// read is the end of what a job's script has written.
func read(j *api.Job) printed {
	p := printed{id: j.ID}
	if j.Output == "" {
		p.note = "its output is its srun's"
		return p
	}
	f, err := os.Open(j.Output)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.note = "nothing is written to " + j.Output
		return p
	case err != nil:
		p.note = err.Error()
		return p
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		p.note = j.Output + " is not a file"
		return p
	}
	from := max(0, st.Size()-tailBytes)
	b := make([]byte, st.Size()-from)
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		p.note = err.Error()
		return p
	}
	b = bytes.TrimRight(b[:n], "\n")
	if from > 0 {
		_, b, _ = bytes.Cut(b, []byte("\n")) // it begins within a line
	}
	p.lines = strings.Split(string(b), "\n")
	p.lines = p.lines[max(0, len(p.lines)-tailLines):]
	return p
}
