package agent

import "sync"

// queue is a list without a bound between goroutines: whoever puts never waits. What is
// put is little, and bounded by what the controller asks for.
type queue[T any] struct {
	mu    sync.Mutex
	items []T
	ready chan struct{} // has a value when there may be items
}

func newQueue[T any]() *queue[T] {
	return &queue[T]{ready: make(chan struct{}, 1)}
}

func (q *queue[T]) put(items ...T) {
	q.mu.Lock()
	q.items = append(q.items, items...)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns all that is there.
func (q *queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}

// some says whether there is anything.
func (q *queue[T]) some() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) > 0
}

// first takes the first, if there is one.
func (q *queue[T]) first() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return item, false
	}
	item, q.items = q.items[0], q.items[1:]
	return item, true
}
