package step

import (
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/launcher/control"
)

// TestSuperviseHold: where nobody says again in time that ranks may run on, they end, and the
// end says why.
func TestSuperviseHold(t *testing.T) {
	t.Parallel()
	s := supervise(t, stepSpec(2, "sleep", "600"))
	s.begin()
	s.send(control.Request{Hold: 60_000})
	s.send(control.Request{Hold: 300})
	end := s.ended()
	if f := end.Fault; f == nil || !f.Node || !strings.HasPrefix(f.What, "lease ended: ") || end.Ranks[0].Signal != 15 || end.Ranks[1].Signal != 15 {
		t.Errorf("end %+v, %+v", end, f)
	}
}
