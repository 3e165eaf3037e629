package attach_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/attach"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// TestUsage: the ranks of all nodes are told in their order; a node that cannot be asked is
// named, and the others are told nevertheless.
func TestUsage(t *testing.T) {
	answer := func(ranks ...int) string {
		return agent(t, func(_ int, c net.Conn, _ *bufio.Reader, hello control.Request) {
			if !hello.Usage {
				t.Errorf("%+v", hello)
			}
			var e control.Event
			for _, r := range ranks {
				e.Usage = append(e.Usage, job.RankUsage{Rank: r, RSS: int64(r) << 20})
			}
			_ = json.NewEncoder(c).Encode(e) // the reader says what is wrong
		})
	}
	refuses := agent(t, func(_ int, c net.Conn, _ *bufio.Reader, _ control.Request) {
		_, _ = io.WriteString(c, `{"refused":"not yours"}`+"\n")
	})
	s := step(answer(2, 3), refuses, answer(0, 1))
	_, err := attach.Usage(t.Context(), &s) // each agent refuses its first connection
	if err == nil || strings.Count(err.Error(), "ask node n") != 3 {
		t.Errorf("%v", err)
	}
	all, err := attach.Usage(t.Context(), &s)
	if err == nil || err.Error() != "ask node n2: not yours" {
		t.Errorf("%v", err)
	}
	for i, u := range all {
		if u.Rank != i || u.RSS != int64(i)<<20 {
			t.Errorf("%+v", all)
		}
	}
	if len(all) != 4 {
		t.Errorf("%+v", all)
	}
}
