package agent

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

func key() job.StepKey { return job.StepKey{Job: 7, Attempt: 1, Step: 0, Try: 1} }

// names are what kinds of things are to be done, and what is said.
func names(todo []any) []string {
	var all []string
	for _, do := range todo {
		name := reflect.TypeOf(do).Name()
		if say, ok := do.(sayDo); ok {
			name = reflect.TypeOf(say.message.Message).Elem().Name()
		}
		all = append(all, name)
	}
	return all
}

// TestLife follows lives from begin to end, as the controller and the supervisor make them.
func TestLife(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	begun := control.Event{Started: &control.Started{At: 5}}
	ready := control.Event{Prepared: &control.Prepared{Image: "sha256:1", Port: 7}}
	over := control.Event{Ended: &job.StepEnd{Key: key(), Node: "n1", Start: 5, End: 9}}
	left := control.Event{Ended: over.Ended, Left: "processes [7]"}
	born := prepareIn{spec: &job.StepSpec{}, patience: time.Minute}
	waits := born
	waits.wait = true
	for _, c := range []struct {
		name string
		in   []any
		last []string // what follows from the last
	}{
		{"prepare", []any{born}, []string{"AgentMessage_Progress", "launchDo"}},
		{"prepared", []any{born, eventIn{ready}}, []string{"AgentMessage_Prepared"}},
		{"prepared twice", []any{born, eventIn{ready}, born}, []string{"AgentMessage_Prepared"}},
		{"start", []any{born, eventIn{ready}, startIn{}}, []string{"beginDo"}},
		{"start too early", []any{born, startIn{}}, nil},
		{"start twice", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, startIn{}}, []string{"AgentMessage_Prepared", "AgentMessage_Started"}},
		{"ended", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, eventIn{over}}, []string{"AgentMessage_Ended"}},
		{"ended and gone", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, eventIn{over}, goneIn{}}, nil},
		{"ended, left something and gone", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, eventIn{left}, goneIn{}}, []string{"destroyDo"}},
		{"adopted, ended while nobody listened", []any{adoptIn{intent: &control.Start{}}, goneIn{over.Ended}}, []string{"destroyDo", "AgentMessage_Ended"}},
		{"acknowledged", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, eventIn{over}, goneIn{}, ackIn{}}, []string{"discardDo"}},
		{"gone after", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, eventIn{over}, ackIn{}, goneIn{}}, []string{"discardDo"}},
		{"supervisor killed", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, goneIn{}}, []string{"destroyDo", "settleDo", "AgentMessage_Ended"}},
		{"killed before the start", []any{born, eventIn{ready}, startIn{}, goneIn{}}, []string{"destroyDo", "settleDo", "AgentMessage_Ended"}},
		{"killed in the prepare", []any{born, goneIn{}}, []string{"destroyDo", "settleDo", "AgentMessage_Ended"}},
		{"cannot be started", []any{born, failedIn{}}, []string{"destroyDo", "settleDo", "AgentMessage_Ended"}},
		{"kill", []any{born, killIn{}}, []string{"tellDo"}},
		{"held in the prepare", []any{born, holdIn{time.Second}}, nil},
		{"held before the start", []any{born, eventIn{ready}, holdIn{time.Second}}, []string{"tellDo"}},
		{"held", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, holdIn{time.Second}}, []string{"tellDo"}},
		{"held when ended", []any{born, eventIn{ready}, startIn{}, eventIn{begun}, eventIn{over}, holdIn{time.Second}}, nil},
		{"signal in the prepare", []any{born, signalIn{10, 1}}, []string{"tellDo"}},
		{"signal before the start", []any{born, eventIn{ready}, signalIn{10, 1}}, []string{"tellDo"}},
		{"signal is there", []any{born, signalIn{10, 1}, signalledIn{1}}, []string{"AgentMessage_Signalled"}},
		{"signal after the end", []any{born, eventIn{over}, signalIn{10, 1}}, nil},
		{"kill what is over", []any{foundIn{end: job.StepEnd{}}, killIn{}}, []string{"AgentMessage_Ended"}},
		{"found", []any{foundIn{end: job.StepEnd{}}}, nil},
		{"found and acknowledged", []any{foundIn{end: job.StepEnd{}}, ackIn{}}, []string{"discardDo"}},
		{"adopted", []any{adoptIn{intent: &control.Start{}}, eventIn{ready}, eventIn{begun}, restateIn{}}, []string{"AgentMessage_Prepared", "AgentMessage_Started"}},
		{"waits for the prolog", []any{waits}, []string{"AgentMessage_Progress"}},
		{"waits, sent again", []any{waits, waits}, []string{"AgentMessage_Progress"}},
		{"the prolog has run", []any{waits, readyIn{}}, []string{"AgentMessage_Progress", "launchDo"}},
		{"the prolog has run, and said again", []any{waits, readyIn{}, readyIn{}}, nil},
		{"the prolog has failed", []any{waits, readyIn{fault: &job.Fault{}, refused: true}}, []string{"settleDo", "AgentMessage_Ended"}},
		{"the prolog has failed, acknowledged", []any{waits, readyIn{fault: &job.Fault{}}, ackIn{}}, []string{"discardDo"}},
		{"killed while it waits", []any{waits, killIn{}}, []string{"settleDo", "AgentMessage_Ended"}},
		{"killed while it waits, and then the prolog ends", []any{waits, killIn{}, readyIn{}}, nil},
		{"adopted and not started", []any{adoptIn{intent: &control.Start{}}, eventIn{ready}, startIn{}}, []string{"beginDo"}},
	} {
		l, todo := life{key: key(), node: "n1"}, []any(nil)
		for _, in := range c.in {
			l, todo = l.step(in, now)
		}
		if got := names(todo); !reflect.DeepEqual(got, c.last) {
			t.Errorf("%s: %v, want %v", c.name, got, c.last)
		}
	}
}

// TestDeadlines: a prepare without progress is ended, and what does not end is destroyed.
func TestDeadlines(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l, _ := life{key: key(), node: "n1"}.step(prepareIn{spec: &job.StepSpec{}, patience: time.Minute, total: time.Hour}, now)
	after := func(d time.Duration, in any) []string {
		t.Helper()
		now = now.Add(d)
		var todo []any
		l, todo = l.step(in, now)
		return names(todo)
	}
	if got := after(59*time.Second, tickIn{}); got != nil {
		t.Error("in time:", got)
	}
	after(0, eventIn{control.Event{Progress: &control.Progress{Phase: "pull"}}})
	if got := after(59*time.Second, tickIn{}); got != nil {
		t.Error("in time after progress:", got)
	}
	if got := after(2*time.Second, tickIn{}); !reflect.DeepEqual(got, []string{"tellDo"}) {
		t.Error("too late:", got)
	}
	if got := after(slack+time.Second, tickIn{}); !reflect.DeepEqual(got, []string{"destroyDo"}) {
		t.Error("does not end:", got)
	}
	after(0, goneIn{})
	if f := l.end.Fault; f == nil || !f.Node || f.Cause != `no progress for 1m0s in its phase "pull"` {
		t.Errorf("fault %+v", f)
	}
}

// TestDeadlinesOfAdopted: a prepare that an earlier agent began is ended too when it hangs,
// and what the controller says again of its spans counts.
func TestDeadlinesOfAdopted(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name  string
		again []any // before it hangs
		alive bool  // it makes progress
		after time.Duration
	}{
		{"without progress", nil, false, 2 * time.Minute},
		{"for too long", nil, true, time.Hour},
		{"sent again", []any{prepareIn{spec: &job.StepSpec{}, patience: 5 * time.Second}}, false, 5 * time.Second},
		{"sent again, for too long", []any{prepareIn{spec: &job.StepSpec{}, patience: time.Hour, total: time.Minute}}, true, time.Minute},
	} {
		l, _ := life{key: key(), node: "n1"}.step(adoptIn{}, began)
		for _, in := range c.again {
			l, _ = l.step(in, began)
		}
		var todo []any
		passed := time.Duration(0)
		for ; passed < 2*time.Hour && todo == nil; passed += time.Second {
			if c.alive {
				l, _ = l.step(eventIn{control.Event{Progress: &control.Progress{Phase: "pull"}}}, began.Add(passed))
			}
			l, todo = l.step(tickIn{}, began.Add(passed))
		}
		if got := names(todo); !reflect.DeepEqual(got, []string{"tellDo"}) || passed < c.after || passed > c.after+3*time.Second {
			t.Errorf("%s: after %s %v, want that it is told to end after %s", c.name, passed, got, c.after)
		}
		if l.fault == nil || !l.fault.Node {
			t.Errorf("%s: fault %+v", c.name, l.fault)
		}
	}
}

// TestLifeRandom: whatever happens in whatever order, a step is launched once, started only
// when it was prepared, its end does not change, and is not forgotten before it was
// acknowledged and everything is gone.
func TestLifeRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := life{key: key(), node: "n1"}
		now := time.Unix(1_700_000_000, 0)
		launched, acked, gone := 0, false, false // gone: also where it was never there
		var end *job.StepEnd
		for range rapid.IntRange(1, 40).Draw(t, "length") {
			in := randomInput(t)
			before := l
			if _, ok := in.(ackIn); ok {
				acked = true
			}
			switch in.(type) {
			case goneIn, failedIn:
				gone = true
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "pause")))
			var todo []any
			l, todo = l.step(in, now)
			gone = gone || l.never
			for _, do := range todo {
				switch do := do.(type) {
				case launchDo:
					if launched++; l.held != nil || l.phase != preparing {
						t.Fatalf("launched in phase %d by %T", l.phase, in)
					}
				case beginDo:
					if before.phase != prepared && before.phase != starting {
						t.Fatalf("started in phase %d by %T", before.phase, in)
					}
				case discardDo:
					if !acked || !gone || l.phase != ended {
						t.Fatalf("forgotten: acknowledged %v, gone %v, phase %d", acked, gone, l.phase)
					}
				case sayDo:
					if _, ok := do.message.Message.(*wire.AgentMessage_Prepared); ok && l.phase == ended {
						t.Fatal("an ended step says that it is prepared")
					}
				}
			}
			if launched > 1 {
				t.Fatal("launched twice")
			}
			if end != nil && !reflect.DeepEqual(*end, l.end) {
				t.Fatalf("the end changed from %+v to %+v", *end, l.end)
			}
			if l.phase == ended && end == nil {
				e := l.end
				end = &e
			}
			if l.phase < before.phase {
				t.Fatalf("phase went from %d to %d by %T", before.phase, l.phase, in)
			}
		}
	})
}

func randomInput(t *rapid.T) any {
	fault := job.Fault{What: "it is so"}
	return rapid.SampledFrom([]any{
		prepareIn{spec: &job.StepSpec{}, patience: time.Minute},
		prepareIn{spec: &job.StepSpec{}, patience: time.Minute, wait: true},
		readyIn{},
		readyIn{fault: &fault, refused: true},
		startIn{},
		renewIn{time.Second},
		signalIn{15, 7},
		signalledIn{7},
		killIn{},
		killIn{fault: &fault},
		ackIn{},
		restateIn{},
		tickIn{},
		eventIn{control.Event{Progress: &control.Progress{Phase: "pull"}}},
		eventIn{control.Event{Prepared: &control.Prepared{}}},
		eventIn{control.Event{Started: &control.Started{At: 1}}},
		eventIn{control.Event{Ended: &job.StepEnd{Start: 1, End: 2}}},
		goneIn{},
		goneIn{&job.StepEnd{Start: 1, End: 3}},
		failedIn{fault},
	}).Draw(t, "input")
}
