package attach_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/attach"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// leaving is an agent whose step says something, and is over when it is asked for again.
func leaving(t *testing.T, said []stdio.Frame, end []byte) (address string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n > 1 {
			w.WriteHeader(http.StatusGone)
			_, _ = w.Write(end)
			return
		}
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: gangway-stdio\r\n\r\n")
		if _, err := buffered.ReadBytes('\n'); err != nil {
			t.Error(err)
		}
		for _, f := range said {
			_ = stdio.Write(c, f)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until it is closed
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "unix:" + path
}

// TestGone: of a step that has ended while its node could not be reached the client hears how
// its ranks ended, and how much of their output it has not got; whoever knows the end tells it.
func TestGone(t *testing.T) {
	t.Parallel()
	end := job.StepEnd{Node: "n1", Ranks: []job.RankEnd{{Rank: 0, Exit: 7, Out: 10, Err: 3}, {Rank: 1, Out: 6}}}
	said := []stdio.Frame{
		{Type: stdio.Stdout, Data: []byte("four")},
		{Type: stdio.Stdout, Rank: 1, Data: []byte("four")},
		{Type: stdio.RankExit, Rank: 1, Data: marshal(t, job.RankEnd{Rank: 1})},
	}
	reason := int(stdio.NotThere)
	all := []string{
		"rank 1: 0", fmt.Sprintf("6 bytes of 0.%d: %d", stdio.Stdout, reason), fmt.Sprintf("3 bytes of 0.%d: %d", stdio.Stderr, reason), "rank 0: 7",
		fmt.Sprintf("2 bytes of 1.%d: %d", stdio.Stdout, reason), "end on n1",
	}
	for name, c := range map[string]struct {
		ranks []int // that are wanted
		later bool  // its node does not say it
		want  []string
	}{
		"all":           {nil, false, all},
		"one rank":      {[]int{1}, false, []string{"rank 1: 0", "rank 0: 7", all[4], "end on n1"}},
		"by who asks":   {nil, true, all},
		"not connected": {nil, true, []string{"10 bytes of 0.16: 2", "3 bytes of 0.17: 2", "rank 0: 7", "6 bytes of 1.16: 2", "rank 1: 0", "end on n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			heard := make(chan struct{}, 8)
			say := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
			address := "unix:/no/such"
			if name != "not connected" {
				address = leaving(t, said, marshal(t, end))
			}
			s := attach.Open(t.Context(), attach.Config{
				Step: step(address), Hello: stdio.Hello{Primary: true, Follow: true, Ranks: c.ranks},
				Output: func(int, stdio.Type, []byte) error { return nil },
				Lost: func(rank int, stream stdio.Type, count uint64, why stdio.Reason) {
					say("%d bytes of %d.%d: %d", count, rank, stream, why)
				},
				RankExit: func(end job.RankEnd) { say("rank %d: %d", end.Rank, end.Exit); heard <- struct{}{} },
				StepEnd:  func(end *job.StepEnd) { say("end on %s", end.Node) },
			})
			if c.later {
				if name != "not connected" {
					<-heard
				}
				s.Stop()
			}
			err := s.Wait()
			if !s.Whole() {
				s.Settle([]job.StepEnd{end, {Node: "n2"}})
			} else if err != nil {
				t.Error(err)
			}
			if !slices.Equal(got, c.want) || !s.Whole() {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
