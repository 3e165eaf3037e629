package sim

import (
	"math"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Marginals are what is published about a trace: how many GPUs its jobs had, and how long
// they ran. A trace generated from them has neither the original's bursts nor what its
// sizes and durations had to do with each other.
type Marginals struct {
	Name string
	GPUs []GPUCount
	// Runs are durations at the quantiles 0, 0.5, 0.9, 0.99 and 1; between them the
	// logarithm of the duration is linear. The first and the last one are ours: of them
	// nothing is published.
	Runs [5]job.Duration
}

// GPUCount is how many jobs had so many GPUs.
type GPUCount struct{ GPUs, Jobs int }

// PhillyMarginals are those of Microsoft's Philly trace of 2017 (Jeon et al., ATC '19).
func PhillyMarginals() Marginals {
	return Marginals{
		Name: "philly marginals",
		GPUs: []GPUCount{{1, 76_627}, {2, 1_818}, {4, 1_870}, {8, 1_643}, {12, 7}, {16, 199}, {24, 7}, {32, 67}, {64, 6}, {128, 3}},
		Runs: [5]job.Duration{10 * job.Second, 1_144 * job.Second, 11_266 * job.Second, 254_884 * job.Second, 15 * job.Day},
	}
}

// OpenBMarginals are the whole-GPU pods of Alibaba's GPU-sharing trace of 2023 (Weng et
// al., ATC '23). Their durations are Philly's: the trace is of services in part.
func OpenBMarginals() Marginals {
	m := PhillyMarginals()
	m.Name, m.GPUs = "openb marginals", []GPUCount{{1, 3_911}, {2, 16}, {4, 15}, {8, 44}}
	return m
}

// Generate makes a trace of so many jobs that come at random (Poisson), as often as makes
// the load on so many GPUs. The same seed gives the same trace on every machine.
func (m Marginals) Generate(jobs, gpus int, load float64, seed uint64) *Trace {
	t := &Trace{Name: m.Name, Format: "generated"}
	total := 0
	for _, g := range m.GPUs {
		total += g.Jobs
	}
	demand := 0.0
	for i := range jobs {
		n := uint64(3 * i)
		j := Job{Line: i + 1, GPUs: m.gpus(int(draw(seed, n) * float64(total))), Run: m.run(draw(seed, n+1))}
		demand += float64(j.GPUs) * float64(j.Run)
		t.Jobs = append(t.Jobs, j)
	}
	if jobs == 0 {
		return t
	}
	mean := demand / float64(jobs) / float64(gpus) / load
	at := 0.0
	for i := range t.Jobs {
		t.Jobs[i].Submit = job.Time(at) / 1000 * 1000
		at += -math.Log(1-draw(seed, uint64(3*i+2))) * mean
	}
	return t
}

// gpus is how many the job of a rank has.
func (m Marginals) gpus(rank int) int {
	for _, g := range m.GPUs {
		if rank -= g.Jobs; rank < 0 {
			return g.GPUs
		}
	}
	return m.GPUs[len(m.GPUs)-1].GPUs
}

// run is the duration at a quantile, in whole seconds: logarithms are not the same to the
// last bit on all machines.
func (m Marginals) run(q float64) job.Duration {
	at := [5]float64{0, 0.5, 0.9, 0.99, 1}
	for i := range 4 {
		if q > at[i+1] {
			continue
		}
		part := (q - at[i]) / (at[i+1] - at[i])
		a, b := math.Log(float64(m.Runs[i])), math.Log(float64(m.Runs[i+1]))
		return max(job.Duration(math.Exp(a+part*(b-a)))/job.Second*job.Second, job.Second)
	}
	return m.Runs[4]
}
