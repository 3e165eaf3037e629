package job

import (
	"encoding/json"
	"testing"
)

// TestStateJSON: states are names in JSON, and numbers of older logs are read.
func TestStateJSON(t *testing.T) {
	for s := Pending; s <= Preempted; s++ {
		b, err := json.Marshal(s)
		var back State
		if err != nil || string(b) != `"`+s.String()+`"` || json.Unmarshal(b, &back) != nil || back != s {
			t.Errorf("%v: %s, %v, read as %v", s, b, err, back)
		}
	}
	var s State
	if err := json.Unmarshal([]byte("3"), &s); err != nil || s != Completed {
		t.Errorf("3: %v, %v", s, err)
	}
	for _, bad := range []string{`"pending"`, `"LOST"`, `-1`, `300`, `null`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &s); err == nil && bad != "null" {
			t.Errorf("%s was taken for %v", bad, s)
		}
	}
}
