package runtime

import (
	"testing"
)

// BenchmarkStart is a container from a running process: with /proc, /dev and /tmp.
func BenchmarkStart(b *testing.B) {
	c := shell(b, "")
	c.Spec.Process.Args = []string{"/bin/true"}
	for b.Loop() {
		box, err := Prepare(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		if err := box.Start(); err != nil {
			b.Fatal(err)
		}
		if status, err := box.Wait(); err != nil || status.Code != 0 {
			b.Fatal(status, err)
		}
		if err := box.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkJoin is a process more in a container that runs.
func BenchmarkJoin(b *testing.B) {
	box := start(b, shell(b, "exec sleep 1000"))
	for b.Loop() {
		p, err := box.Join(b.Context(), JoinProcess{Args: []string{"/bin/true"}})
		if err != nil {
			b.Fatal(err)
		}
		if status, err := p.Wait(); err != nil || status.Code != 0 {
			b.Fatal(status, err)
		}
	}
}
