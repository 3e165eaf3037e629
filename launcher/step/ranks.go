package step

import "sync"

// ranks counts the commands of those who joined a container because it was started under
// the same name at the same time, as the ranks of a job do. The container does not end
// before theirs.
type ranks struct {
	waiting chan struct{} // closed when the first command has ended

	mu    sync.Mutex
	left  sync.Cond
	n     int
	over  bool
	hurry bool
}

func newRanks() *ranks {
	r := &ranks{waiting: make(chan struct{})}
	r.left.L = &r.mu
	return r
}

// join says whether the container is there for one more, who leaves when it ends.
func (r *ranks) join() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false
	}
	r.n++
	return true
}

func (r *ranks) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n--
	r.left.Broadcast()
}

// wait is called once, when the first command has ended: it waits until all have left, or
// there is no time for that.
func (r *ranks) wait() {
	close(r.waiting)
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.n > 0 && !r.hurry {
		r.left.Wait()
	}
	r.over = true
}

// count is how many there are.
func (r *ranks) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// end says that the container is to end now.
func (r *ranks) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hurry = true
	r.left.Broadcast()
}
