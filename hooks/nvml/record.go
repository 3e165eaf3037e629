package nvml

import (
	"context"
	"slices"
	"time"
)

// Use is what one GPU did over a time.
type Use struct {
	UUID string `json:"uuid"`
	// Samples is how many answers it rests on.
	Samples int `json:"samples"`
	// GPUPercent is the mean over the samples that told, nil if none did.
	GPUPercent *float64 `json:"gpu_percent,omitempty"`
	// MemoryPeak is the most memory in use at any sample, by all its users, in bytes.
	MemoryPeak *uint64 `json:"memory_peak_bytes,omitempty"`
	// MemoryTotal is the memory of the GPU in bytes.
	MemoryTotal *uint64 `json:"memory_total_bytes,omitempty"`
	// Joules is the energy between the first and the last sample, of the whole GPU, also
	// where only an instance of it was used. It is nil if the GPU has no counter, or if
	// the counter began anew because the driver was loaded again.
	Joules *float64 `json:"joules,omitempty"`
}

// Recorder adds samples up. The zero value is ready; it is not for concurrent use.
type Recorder struct {
	gpus []*gpuRecord // in the order in which they came
}

type gpuRecord struct {
	use         Use
	sum         float64
	n           int
	first, last *uint64 // of the energy counter
	reset       bool
}

// Add takes one more sample, which is no older than the last.
func (r *Recorder) Add(s *Sample) {
	for _, load := range s.GPUs {
		if load.UUID == "" { // it has fallen off the bus
			continue
		}
		i := slices.IndexFunc(r.gpus, func(g *gpuRecord) bool { return g.use.UUID == load.UUID })
		if i < 0 {
			i = len(r.gpus)
			r.gpus = append(r.gpus, &gpuRecord{use: Use{UUID: load.UUID}})
		}
		r.gpus[i].add(load)
	}
}

func (g *gpuRecord) add(load Load) {
	g.use.Samples++
	if load.GPUPercent != nil {
		g.sum += float64(*load.GPUPercent)
		g.n++
	}
	if m := load.MemoryUsed; m != nil && (g.use.MemoryPeak == nil || *m > *g.use.MemoryPeak) {
		g.use.MemoryPeak = m
	}
	if load.MemoryTotal != nil {
		g.use.MemoryTotal = load.MemoryTotal
	}
	if e := load.Millijoules; e != nil {
		if g.first == nil {
			g.first, g.last = e, e
		}
		g.reset = g.reset || *e < *g.last
		g.last = e
	}
}

// Uses returns what the GPUs did from the first sample to the last.
func (r *Recorder) Uses() []Use {
	uses := make([]Use, 0, len(r.gpus))
	for _, g := range r.gpus {
		u := g.use
		if g.n > 0 {
			u.GPUPercent = new(g.sum / float64(g.n))
		}
		if g.first != nil && !g.reset {
			u.Joules = new(float64(*g.last-*g.first) / 1000)
		}
		uses = append(uses, u)
	}
	return uses
}

// Record samples these GPUs now, every interval, and once more when ctx ends, and returns
// what they did. The error says why figures may be missing; the Uses are good nevertheless.
// It returns no later than Options.StartTimeout after ctx's end.
func (c *Client) Record(ctx context.Context, interval time.Duration, uuids ...string) ([]Use, error) {
	var r Recorder
	var last error
	sample := func() {
		// Not ctx: a question that is cut short costs the helper, and the last is asked after its end.
		s, err := c.Sample(context.WithoutCancel(ctx), uuids...)
		if err != nil {
			last = err
			return
		}
		r.Add(s)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		sample()
		select {
		case <-tick.C:
		case <-ctx.Done():
			sample()
			return r.Uses(), last
		}
	}
}
