package step

import "sync"

// ranks counts the commands of those who joined a container because it was started under
// the same name at the same time, as the ranks of a job do. The container does not end
// before theirs.
type ranks struct {
	mu    sync.Mutex
	left  sync.Cond
	n     int
	over  bool
	hurry bool
}

func newRanks() *ranks {
	r := &ranks{}
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

// wait waits until all have left, or there is no time for that.
func (r *ranks) wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.n > 0 && !r.hurry {
		r.left.Wait()
	}
	r.over = true
}

// end says that the container is to end now.
func (r *ranks) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hurry = true
	r.left.Broadcast()
}
