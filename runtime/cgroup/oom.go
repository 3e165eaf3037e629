package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OOM is a report of ranks that were ended because they wanted more memory than there was.
type OOM struct {
	Rank    int       // the one with the largest process, -1 if that is not known
	Kills   uint64    // processes that the kernel ended
	Peak    int64     // bytes, of all ranks together; 0 is unknown
	Limit   int64     // bytes
	Above   bool      // it was not this limit: that of a group above, or the machine's memory
	Largest []Process // the largest when last seen, at most 5; the first was the largest
}

// String is the report in one line.
func (o OOM) String() string {
	who := "the ranks"
	if o.Rank >= 0 {
		who = "rank " + strconv.Itoa(o.Rank)
	}
	what := "ran out of memory"
	if o.Above {
		what = "were ended because the machine, or a control group above theirs, ran out of memory"
		if o.Rank >= 0 {
			what = "was" + strings.TrimPrefix(what, "were")
		}
	}
	peak := "unknown"
	if o.Peak > 0 {
		peak = Bytes(o.Peak)
	}
	s := fmt.Sprintf("%s %s: peak %s, limit %s, %d killed", who, what, peak, Bytes(o.Limit), o.Kills)
	var names []string
	for _, p := range o.Largest {
		names = append(names, fmt.Sprintf("%d (%s) %s", p.PID, p.Name, Bytes(p.RSS)))
	}
	if len(names) > 0 {
		s += "; largest: " + strings.Join(names, ", ")
	}
	return s
}

// Watch looks for ranks that run out of memory, until Stop.
type Watch struct {
	g      *Group
	events *os.File // tells that something happened; nil without memory controller
	tree   *tree
	done   chan struct{}
	once   sync.Once
	quiet  time.Duration // between samples, while nothing changes
	last   int64         // bytes in use

	mu      sync.Mutex // guards what follows
	largest []Process
	rank    int // of the first of largest, -1 if it has none
}

// Watch begins to watch: it looks at the memory in use from twice to two hundred times a
// second, the more often the lower the limit, and the more seldom while nothing changes; near
// the limit it notes the largest processes for the report. Version 1 kills one process only: there the rest
// of the ranks is ended by the Watch. Where memory is not limited it watches nothing.
func (g *Group) Watch() (*Watch, error) {
	w := &Watch{g: g, done: make(chan struct{}), rank: -1}
	for _, version := range []int{2, 1} {
		if w.tree == nil {
			w.tree = g.made("memory", version)
		}
	}
	if w.tree == nil {
		close(w.done)
		return w, nil
	}
	var err error
	if w.tree.version == 2 {
		w.events, err = inotify(filepath.Join(w.tree.leaf(ranksLeaf), "memory.events"))
	} else {
		w.events, err = eventfd(w.tree.leaf(ranksLeaf))
	}
	if err != nil {
		return nil, fmt.Errorf("watch cgroup: %w", err)
	}
	w.sample()
	go w.run()
	return w, nil
}

// inotify returns a descriptor that can be read when path changes.
func inotify(path string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
		_ = unix.Close(fd)
		return nil, &os.PathError{Op: "inotify_add_watch", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// eventfd returns a descriptor that version 1 tells of an OOM in dir.
func eventfd(dir string) (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	events := os.NewFile(uintptr(fd), "eventfd")
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err == nil {
		err = write(dir, "cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd()))
		err = errors.Join(err, control.Close())
	}
	if err != nil {
		_ = events.Close()
		return nil, err
	}
	return events, nil
}

func (w *Watch) run() {
	defer close(w.done)
	buffer := make([]byte, 4096)
	for {
		_ = w.events.SetReadDeadline(time.Now().Add(w.sample()))
		_, err := w.events.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // Stop
		}
		if w.tree.version == 1 {
			w.endOthers() // the event comes before the kill: look every time
		}
	}
}

// endOthers does what memory.oom.group of version 2 does.
func (w *Watch) endOthers() {
	if kills, _ := w.g.oomKills(); kills > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = w.g.Kill(ctx)
	}
}

// growth is the most that memory grows, in bytes a second: samples come so often that
// nobody gets from half the limit to all of it unseen.
const growth = 8 << 30

// sample notes the largest processes once half of the limit is used, and returns when to do
// so again. Those that are dead or about to be have nothing, and do not count.
func (w *Watch) sample() time.Duration {
	dir := w.tree.leaf(ranksLeaf)
	now, limit := w.use(dir)
	if limit == Unlimited {
		return time.Second
	}
	next := min(max(time.Duration(float64(limit)/2/growth*float64(time.Second)), 5*time.Millisecond), time.Second/2)
	if now < limit/2 {
		if w.quiet = min(max(2*w.quiet, next), max(next, 50*time.Millisecond)); w.moved(now, limit) {
			w.quiet = next
		}
		return w.quiet
	}
	began := time.Now()
	pids, _ := processes(dir)
	var all []Process
	for _, pid := range pids {
		if rss := residentSize(w.g.proc, pid); rss > 0 {
			all = append(all, Process{PID: pid, RSS: rss})
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return cmp.Compare(b.RSS, a.RSS) })
	all = all[:min(5, len(all))]
	for i := range all {
		rss := all[i].RSS
		all[i] = look(w.g.proc, all[i].PID)
		all[i].RSS = rss
	}
	// What is left after the kernel killed some says nothing about why.
	if kills, _ := w.g.oomKills(); kills == 0 && len(all) > 0 {
		rank := rankOf(w.g.proc, all[0].PID)
		w.mu.Lock()
		w.largest, w.rank = all, rank
		w.mu.Unlock()
	}
	return max(min(next, 50*time.Millisecond), 50*time.Since(began)) // at most 2 % of a CPU
}

// moved says whether the memory in use is another than it was.
func (w *Watch) moved(now, limit int64) bool {
	by := now - w.last
	w.last = now
	return max(by, -by) > limit/128
}

// use reads what is in use and the limit.
func (w *Watch) use(dir string) (now, limit int64) {
	files := []string{"memory.current", "memory.max"}
	if w.tree.version == 1 {
		files = []string{"memory.usage_in_bytes", "memory.limit_in_bytes"}
	}
	now, _ = number(dir, files[0])
	limit, ok := number(dir, files[1])
	if !ok {
		limit = Unlimited
	}
	return now, limit
}

// OOM returns the report if the ranks ran out of memory since the group was made, and nil
// otherwise. It asks the kernel, so it is right also immediately after a container ended.
func (w *Watch) OOM() *OOM {
	kills, _ := w.g.oomKills()
	if kills == 0 {
		return nil
	}
	s := w.g.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &OOM{Rank: w.rank, Kills: kills, Peak: s.MemoryPeak, Limit: s.MemoryLimit, Above: !w.reached(), Largest: slices.Clone(w.largest)}
	if slices.Contains(s.Unknown, "MemoryPeak") && !o.Above { // kernels before 5.19: it was as much as there was to have
		o.Peak = o.Limit
	}
	return o
}

// reached says whether the ranks came to their own limit. Version 2 tells of when that was
// more than the kernel could find otherwise.
func (w *Watch) reached() bool {
	dir := w.tree.leaf(ranksLeaf)
	if w.tree.version == 2 {
		n, ok := pairs(dir, "memory.events")["oom"]
		return n > 0 || !ok
	}
	if n, _ := number(dir, "memory.failcnt"); n > 0 {
		return true
	}
	// Where memory and swap have one limit it is that of both which fails, and Linux 6.18 does
	// not count that.
	peak, ok := number(dir, "memory.memsw.max_usage_in_bytes")
	if !ok {
		peak, ok = number(dir, "memory.max_usage_in_bytes")
	}
	limit, limited := number(dir, "memory.limit_in_bytes")
	return !ok || !limited || limit != Unlimited && peak >= limit-max(limit/16, 4<<20)
}

// rankOf tells the rank that pid belongs to, -1 if none.
func rankOf(proc string, pid int) int {
	text, _ := read(filepath.Join(proc, strconv.Itoa(pid)), "cgroup")
	_, after, found := strings.Cut(text, "/"+ranksLeaf+"/rank-")
	digits, _, _ := strings.Cut(after, "\n")
	digits, _, _ = strings.Cut(digits, "/")
	if n, err := strconv.Atoi(digits); found && err == nil {
		return n
	}
	return -1
}

// Stop ends the watch. OOM can still be asked until the group is removed.
func (w *Watch) Stop() {
	w.once.Do(func() {
		if w.events != nil {
			_ = w.events.Close()
		}
	})
	<-w.done
}
