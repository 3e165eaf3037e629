package agent

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/program"
)

// kinds are what kinds of things are to be done.
func kinds(todo []any) string {
	var all []string
	for _, do := range todo {
		name := reflect.TypeOf(do).Name()
		switch do := do.(type) {
		case runDo:
			name = string(do.kind)
		case readyDo:
			if do.refused {
				name += "!"
			}
		case leaveDo:
			if do.drain {
				name += "!"
			}
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

// TestStay follows what jobs go through on a node, as the controller and the programs make it.
func TestStay(t *testing.T) {
	bad := &job.Fault{What: "it is bad", Cause: "exit code 1"}
	enter, empty := enterIn{any: true}, emptyIn{any: true}
	well, badly := ranIn{program.Prolog, nil}, ranIn{program.Prolog, bad}
	over, overBadly := ranIn{program.Epilog, nil}, ranIn{program.Epilog, bad}
	for _, c := range []struct {
		name string
		in   []any
		last string // what follows from the last
	}{
		{"a first step", []any{enter}, "prolog"},
		{"another one meanwhile", []any{enter, enter}, ""},
		{"the prolog has run", []any{enter, well}, "keepDo readyDo"},
		{"another step later", []any{enter, well, enter}, "readyDo"},
		{"the prolog has failed", []any{enter, badly}, "keepDo readyDo!"},
		{"another step where it has failed", []any{enter, badly, enter}, "readyDo!"},
		{"asked for", []any{enterIn{any: true, asked: true}, well}, "keepDo readyDo tellNow"},
		{"asked again", []any{enterIn{any: true, asked: true}, well, enterIn{any: true, asked: true}}, "readyDo tellNow"},
		{"there is no prolog", []any{enterIn{}}, "readyDo"},
		{"released", []any{enter, well, leaveIn{}}, ""},
		{"released and empty", []any{enter, well, leaveIn{}, empty}, "epilog"},
		{"the epilog has run", []any{enter, well, leaveIn{}, empty, over}, "keepDo leaveDo"},
		{"the epilog has failed", []any{enter, well, leaveIn{}, empty, overBadly}, "keepDo leaveDo!"},
		{"released again while it runs", []any{enter, well, leaveIn{}, empty, leaveIn{}, empty}, ""},
		{"released again when it has run", []any{enter, well, leaveIn{}, empty, over, leaveIn{}, empty}, "leaveDo"},
		{"released again when it has failed", []any{enter, well, leaveIn{}, empty, overBadly, leaveIn{}, empty}, "leaveDo!"},
		{"there is no epilog", []any{enter, well, leaveIn{}, emptyIn{}}, "leaveDo"},
		{"nothing has run here", []any{leaveIn{}, empty}, "epilog"},
		{"released while the prolog runs", []any{enter, leaveIn{}, empty}, ""},
		{"and it ends", []any{enter, leaveIn{}, empty, well}, "keepDo readyDo epilog"},
		{"a step of what is released", []any{leaveIn{}, enter}, "readyDo"},
	} {
		s, todo := stay{}, []any(nil)
		for _, in := range c.in {
			s, todo = s.step(in)
		}
		if got := kinds(todo); got != c.last {
			t.Errorf("%s: %q, want %q", c.name, got, c.last)
		}
	}
}

// TestStayRandom: whatever comes in whatever order, also to an agent that was killed: no step
// goes on before the prolog has run well; while the agent lives each program runs once, and what
// has ended never again; the epilog comes when nothing else is left, and a node says that it is
// clean after its end.
func TestStayRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, running, ended := stay{}, map[program.Kind]bool{}, map[program.Kind]bool{}
		var kept stayRecord
		well := false
		for range rapid.IntRange(1, 30).Draw(t, "length") {
			in := rapid.SampledFrom([]any{
				enterIn{any: true}, enterIn{any: true, asked: true}, leaveIn{}, emptyIn{any: true}, program.Prolog, program.Epilog, "killed",
			}).Draw(t, "input")
			switch what := in.(type) {
			case string:
				s, running = *kept.stay(), map[program.Kind]bool{}
				ended = map[program.Kind]bool{program.Prolog: kept.Prolog, program.Epilog: kept.Epilog}
				continue
			case program.Kind:
				if !running[what] {
					continue
				}
				running[what], ended[what] = false, true
				ran := ranIn{kind: what}
				if rapid.Bool().Draw(t, "fails") {
					ran.fault = &job.Fault{Cause: "it fails"}
				}
				well = well || what == program.Prolog && ran.fault == nil
				in = ran
			case emptyIn:
				if !s.leaving {
					continue
				}
			}
			var todo []any
			s, todo = s.step(in)
			for _, do := range todo {
				switch do := do.(type) {
				case runDo:
					if running[do.kind] || ended[do.kind] {
						t.Fatalf("the %s runs again", do.kind)
					}
					if do.kind == program.Epilog && (running[program.Prolog] || !s.leaving) {
						t.Fatal("the epilog runs before all is over")
					}
					running[do.kind] = true
				case keepDo:
					kept = s.record()
				case readyDo:
					if do.fault == nil && !well {
						t.Fatal("a step goes on without a prolog")
					}
				case leaveDo:
					if running[program.Prolog] || !ended[program.Epilog] {
						t.Fatal("the node is clean before the epilog has run")
					}
				}
			}
		}
	})
}
