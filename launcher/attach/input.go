package attach

import (
	"io"
	"sync"

	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// input is what is to be read by ranks: a window of it is kept until all nodes that read
// it have taken it.
type input struct {
	r io.Reader

	mu     sync.Mutex
	change *sync.Cond
	data   []byte // from base on
	base   uint64
	ended  bool // data is followed by nothing
	closed bool
	to     map[*node]*cursor
}

// cursor is how far a node is.
type cursor struct {
	sent, taken uint64
	connected   bool
	connection  int // which of the node's that is
	writing     bool
}

func newInput(r io.Reader, nodes []*node) *input {
	in := &input{r: r, ended: r == nil, to: map[*node]*cursor{}}
	in.change = sync.NewCond(&in.mu)
	for _, n := range nodes {
		in.to[n] = &cursor{}
	}
	return in
}

// fill reads the input as nodes take it. A part that was read before the session's end is
// lost with it, as with any pipe.
func (in *input) fill() {
	if len(in.to) == 0 {
		return // it stays unread: it is somebody else's
	}
	buffer := make([]byte, 32<<10)
	for {
		in.mu.Lock()
		for !in.closed && len(in.data) >= stdio.Window {
			in.change.Wait()
		}
		room := stdio.Window - len(in.data)
		closed := in.closed
		in.mu.Unlock()
		if closed {
			return
		}
		n, err := in.r.Read(buffer[:min(len(buffer), room)])
		in.mu.Lock()
		in.data = append(in.data, buffer[:n]...)
		in.ended = err != nil
		in.mu.Unlock()
		in.pump()
		if err != nil {
			return
		}
	}
}

// pump sends nodes what they have not got.
func (in *input) pump() {
	in.mu.Lock()
	nodes := make([]*node, 0, len(in.to))
	for n := range in.to {
		nodes = append(nodes, n)
	}
	in.mu.Unlock()
	for _, n := range nodes {
		in.push(n)
	}
}

// push sends one node what it has not got. One goroutine does so at a time.
func (in *input) push(n *node) {
	in.mu.Lock()
	defer in.mu.Unlock()
	c := in.to[n]
	if c == nil || c.writing {
		return
	}
	c.writing = true
	defer func() { c.writing = false }()
	for c.connected {
		end := in.base + uint64(len(in.data))
		f := stdio.Frame{Type: stdio.Stdin, Offset: c.sent}
		switch {
		case c.sent < end:
			part := in.data[c.sent-in.base:]
			f.Data = append([]byte(nil), part[:min(len(part), 32<<10)]...)
		case c.sent == end && in.ended:
			f.Type = stdio.StdinEOF
		default:
			return
		}
		c.sent += uint64(len(f.Data))
		connection := c.connection
		in.mu.Unlock()
		ok := n.write(f, connection)
		in.mu.Lock()
		switch {
		case c.connection != connection: // from where that one is
		case !ok:
			c.connected = false
		case f.Type == stdio.StdinEOF:
			return
		}
	}
}

// taken notes how much of the input a node has, and drops what all have.
func (in *input) taken(n *node, offset uint64) {
	in.mu.Lock()
	c := in.to[n]
	if c == nil {
		in.mu.Unlock()
		return
	}
	first := c.connection != n.connection
	c.taken = max(c.taken, min(offset, in.base+uint64(len(in.data))))
	if first {
		c.sent, c.connected, c.connection = c.taken, true, n.connection
	}
	least := in.base + uint64(len(in.data))
	for _, other := range in.to {
		least = min(least, other.taken)
	}
	in.data = append([]byte(nil), in.data[least-in.base:]...)
	in.base = least
	in.change.Broadcast()
	in.mu.Unlock()
	if first {
		go in.push(n) // the caller reads frames, and may not wait for a writer
	}
}

func (in *input) disconnected(n *node) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c := in.to[n]; c != nil {
		c.connected = false
	}
}

func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.change.Broadcast()
}
