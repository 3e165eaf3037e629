package main

import (
	"encoding/json"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
)

// TestEventTexts: what happened to a step is said in words.
func TestEventTexts(t *testing.T) {
	t.Parallel()
	key := `"Key":{"Job":3,"Attempt":1,"Step":0,"Try":1}`
	for _, c := range []struct{ kind, data, want string }{
		{"StepStopped", `{` + key + `,"Grace":30000,"Why":"CANCELLED"}`, "step 0 is ended by order: CANCELLED"},
		{"StepFailing", `{` + key + `,"Why":"a rank failed on node n2","First":["n2"]}`, "step 0 is ended: a rank failed on node n2"},
		{"SignalKept", `{` + key + `,"Node":"","Signal":-10}`, "step 0 gets SIGUSR1"},
		{"SignalsSent", `{` + key + `,"Node":"n2","UpTo":58}`, "step 0 on n2 has its signals"},
	} {
		if got := eventText(&api.Logged{Kind: c.kind, Data: json.RawMessage(c.data)}); got != c.want {
			t.Errorf("%s: %q, want %q", c.kind, got, c.want)
		}
	}
}
