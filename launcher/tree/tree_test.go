package tree

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/wire"
)

// reach is how deep each node of a list is when it is cut again and again, as commands are; gone
// are nodes that cannot be reached, whose parts are adopted by who cut them.
func reach(list []string, width, depth int, gone map[string]bool, found map[string][]int, by map[string]string, from string) {
	for _, part := range Split(list, width) {
		first := part[0]
		if gone[first] {
			reach(part[1:], width, depth, gone, found, by, from)
			continue
		}
		found[first], by[first] = append(found[first], depth), from
		reach(part[1:], width, depth+1, gone, found, by, first)
	}
}

// TestReach: every node is reached once, and in as many hops as a tree of that width has; where
// nodes are gone, all others still are, and only those below them have another one above.
func TestReach(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, width := rapid.IntRange(0, 600).Draw(t, "nodes"), rapid.IntRange(1, 40).Draw(t, "width")
		var list []string
		for i := range n {
			list = append(list, fmt.Sprint(i))
		}
		found, by := map[string][]int{}, map[string]string{}
		reach(list, width, 1, nil, found, by, "controller")
		deepest, most := 0, 0
		for _, name := range list {
			if len(found[name]) != 1 {
				t.Fatalf("node %s is reached %d times", name, len(found[name]))
			}
			deepest = max(deepest, found[name][0])
		}
		for room := 0; room < n; most++ { // as deep as a full tree of that width, and one more for parts that are not equal
			room += int(math.Pow(float64(width), float64(most+1)))
		}
		if deepest > most+1 {
			t.Fatalf("%d nodes, width %d: %d hops, want at most %d", n, width, deepest, most+1)
		}
		gone := map[string]bool{}
		for _, name := range list {
			gone[name] = rapid.IntRange(0, 9).Draw(t, "dies") == 0
		}
		after, adopted := map[string][]int{}, map[string]string{}
		reach(list, width, 1, gone, after, adopted, "controller")
		for _, name := range list {
			if want := 1; len(after[name]) != want && !gone[name] || gone[name] && len(after[name]) != 0 {
				t.Fatalf("node %s, gone %v, is reached %d times", name, gone[name], len(after[name]))
			}
			orphan := false
			for up := name; up != "controller"; up = by[up] {
				orphan = orphan || gone[up]
			}
			if !orphan && adopted[name] != by[name] {
				t.Fatalf("node %s is no orphan, and is below %s now, not %s", name, adopted[name], by[name])
			}
		}
	})
}

// TestSplit: the parts are the list, there are at most width, and none is longer than another by
// more than one.
func TestSplit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list, width := rapid.SliceOf(rapid.Int()).Draw(t, "list"), rapid.IntRange(-1, 50).Draw(t, "width")
		parts := Split(list, width)
		if len(parts) > max(1, width) || !slices.Equal(slices.Concat(parts...), list) {
			t.Fatalf("%v by %d: %v", list, width, parts)
		}
		for _, p := range parts {
			if len(p) == 0 || len(p) > len(parts[0])+1 || len(p) < len(parts[0])-1 {
				t.Fatalf("%v by %d: %v", list, width, parts)
			}
		}
	})
}

// TestWindow: a number counts once, in any order, unless it is far behind the highest: then
// nobody says that it counts.
func TestWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		seen, top := map[uint64]bool{}, uint64(0)
		for range rapid.IntRange(1, 300).Draw(t, "count") {
			n := rapid.OneOf(rapid.Uint64Range(0, 3000), rapid.Uint64Range(max(top, 20)-20, max(top, top+20)), rapid.Uint64()).Draw(t, "n")
			want := Taken
			switch {
			case n == 0 || n <= top && top-n >= windowSize:
				want = Old
			case seen[n]:
				want = Again
			}
			if got := w.Take(n); got != want {
				t.Fatalf("%d after %d: %v, want %v", n, top, got, want)
			}
			if want == Taken {
				seen[n], top = true, max(top, n)
			}
		}
	})
}

// TestSeals: what was changed, is of another session, or of the other kind, is refused.
func TestSeals(t *testing.T) {
	t.Parallel()
	s, other, body := NewSecret(), NewSecret(), []byte("text")
	target := func(edit func(*wire.Target)) *wire.Target {
		c := &wire.Target{Node: "n1", Seq: 3, After: 2}
		s.SealCommand(c, Hash(body))
		edit(c)
		return c
	}
	answer := func(edit func(*wire.Reply)) *wire.Reply {
		a := &wire.Reply{Node: "n1", Seq: 3, Got: 2, Body: body}
		s.SealAnswer(a)
		edit(a)
		return a
	}
	if err := s.openCommand(target(func(*wire.Target) {}), body); err != nil {
		t.Errorf("a command: %v", err)
	}
	if err := s.OpenAnswer(answer(func(*wire.Reply) {})); err != nil {
		t.Errorf("an answer: %v", err)
	}
	for name, err := range map[string]error{
		"another body":           s.openCommand(target(func(*wire.Target) {}), []byte("test")),
		"another number":         s.openCommand(target(func(c *wire.Target) { c.Seq++ }), body),
		"an earlier place":       s.openCommand(target(func(c *wire.Target) { c.After-- }), body),
		"no seal":                s.openCommand(target(func(c *wire.Target) { c.Mac = nil }), body),
		"another session":        other.openCommand(target(func(*wire.Target) {}), body),
		"no session":             Secret(nil).openCommand(target(func(*wire.Target) {}), body),
		"an answer as a command": s.openCommand(target(func(c *wire.Target) { c.Mac = s.seal(kindAnswer, 3, 2, body) }), body),
		"another answer":         s.OpenAnswer(answer(func(a *wire.Reply) { a.Body = []byte("test") })),
		"a repeated answer":      s.OpenAnswer(answer(func(a *wire.Reply) { a.Seq++ })),
		"more than was got":      s.OpenAnswer(answer(func(a *wire.Reply) { a.Got++ })),
		"an answer without seal": s.OpenAnswer(answer(func(a *wire.Reply) { a.Mac = nil })),
		"of another node":        other.OpenAnswer(answer(func(*wire.Reply) {})),
		"of no session":          Secret(nil).OpenAnswer(answer(func(*wire.Reply) {})),
	} {
		if err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
