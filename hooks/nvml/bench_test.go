package nvml

import "testing"

// BenchmarkSample is one question to a running helper that answers at once: what the pipe
// and the two processes cost.
func BenchmarkSample(b *testing.B) {
	c := New(Options{Program: "/proc/self/exe", Env: []string{helperMode + "=good"}})
	defer func() { _ = c.Close() }()
	for b.Loop() {
		if _, err := c.Sample(b.Context(), "GPU-1"); err != nil {
			b.Fatal(err)
		}
	}
}
