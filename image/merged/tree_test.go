package merged

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestTree: names are found, and only those that are there, through thousands of
// insertions and removals in any order.
func TestTree(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tr := newTree()
	there := map[string]uint32{}
	for range 30_000 {
		name := fmt.Sprint(rnd.IntN(2000))
		e, ok := tr.find(rootNode, name)
		if n, want := there[name]; ok != want || ok && tr.entries.at(e).node != n {
			t.Fatalf("%q: found %v, want %v", name, ok, want)
		}
		if ok {
			tr.remove(e)
			delete(there, name)
			continue
		}
		n := tr.newNode(node{links: 1})
		tr.insert(rootNode, name, n)
		there[name] = n
	}
	listed := 0
	for e := tr.nodes.at(rootNode).data; e != none; e = tr.entries.at(e).next {
		if n, ok := there[string(tr.nameOf(tr.entries.at(e)))]; !ok || n != tr.entries.at(e).node {
			t.Errorf("%q is listed", tr.nameOf(tr.entries.at(e)))
		}
		listed++
	}
	if listed != len(there) || int(tr.live) != len(there) {
		t.Errorf("%d are listed, %d counted, want %d", listed, tr.live, len(there))
	}
	if tr.nodes.n > 2001 || tr.entries.n > 2000 {
		t.Errorf("%d nodes and %d entries are never used again", tr.nodes.n, tr.entries.n)
	}
}
