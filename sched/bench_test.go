package sched

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// rng is a small generator of numbers that are the same everywhere.
type rng uint64

func (r *rng) next(n int) int {
	*r ^= *r << 13
	*r ^= *r >> 7
	*r ^= *r << 17
	return int(uint64(*r>>11) % uint64(n))
}

// philly is a job by the marginals of the Philly trace: mostly one GPU.
func philly(r *rng) job.Spec {
	limit := job.Duration(1+r.next(48)) * job.Hour
	switch x := r.next(82247); {
	case x < 76627:
		return gpus(1, 1, limit)
	case x < 76627+1818:
		return gpus(1, 2, limit)
	case x < 76627+1818+1870:
		return gpus(1, 4, limit)
	case x < 76627+1818+1870+1643:
		return gpus(1, 8, limit)
	case x < 82247-76:
		return gpus(2, 8, limit)
	case x < 82247-9:
		return gpus(4, 8, limit)
	case x < 82247-3:
		return gpus(8, 8, limit)
	}
	return gpus(16, 8, limit)
}

// big makes 10,000 nodes with 8 GPUs in a tree of three levels, in part full of jobs.
func big(b testing.TB, full float64) (*Scheduler, *rng) {
	b.Helper()
	s := New()
	r := rng(88172645463325252)
	var net job.Network
	names := make([]string, 0, 10000)
	top := job.Switch{Name: "core"}
	for p := range 16 {
		pod := job.Switch{Name: fmt.Sprintf("pod%d", p)}
		for l := range 25 {
			leaf := job.Switch{Name: fmt.Sprintf("leaf%d-%d", p, l)}
			for range 25 {
				name := fmt.Sprintf("n%05d", len(names))
				names = append(names, name)
				leaf.Nodes = append(leaf.Nodes, name)
				apply(b, s, job.NodeSet{Node: job.Node{Name: name, CPUs: 128, GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}, Block: fmt.Sprintf("b%d", len(names)/18)}})
			}
			net.Switches = append(net.Switches, leaf)
			pod.Switches = append(pod.Switches, leaf.Name)
		}
		net.Switches = append(net.Switches, pod)
		top.Switches = append(top.Switches, pod.Name)
	}
	net.Switches = append(net.Switches, top)
	apply(b, s, job.NetworkSet{Network: net})
	apply(b, s, job.PartitionSet{Partition: job.Partition{Name: "main", Nodes: names, Default: true}})
	id, used := job.ID(0), 0
	for used < int(full*80000) {
		spec := philly(&r)
		if r.next(10) > 0 {
			spec = gpus(1, 8, spec.TimeLimit)
		}
		id++
		apply(b, s, job.Submitted{At: 1, ID: id, Spec: spec})
		used += spec.MinNodes * int(spec.GRES[0].Count)
	}
	s.Decide(1)
	if err := s.Check(); err != nil {
		b.Fatal(err)
	}
	return s, &r
}

// cpu is the time that the process has used of all cores, the collection of garbage with it.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU adds what an operation took of the cores since from: on a busy machine that
// says more than the time on the wall.
func reportCPU(b *testing.B, from time.Duration) {
	b.ReportMetric(float64((cpu()-from).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// BenchmarkDecisions is a job that starts and one that ends, on a cluster that stays 90 %
// full, as the Philly trace has them. The p99 is of submission and decision together.
func BenchmarkDecisions(b *testing.B) {
	s, r := big(b, 0.9)
	id := job.ID(len(s.jobs))
	var running []job.ID
	for v := range s.Running {
		running = append(running, v.ID)
	}
	now := job.Time(1)
	specs := make([]job.Spec, 4096)
	for i := range specs {
		specs[i] = philly(r)
	}
	var took []time.Duration
	deciding := time.Duration(0)
	used := 72000
	before := cpu()
	b.ResetTimer()
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		from := time.Now()
		now++
		id++
		spec := specs[i%len(specs)]
		if err := s.Apply(job.Submitted{At: now, ID: id, Spec: spec}); err != nil {
			b.Fatal(err)
		}
		submitted := time.Now()
		if len(s.Decide(now)) != 1 {
			b.Fatal("it did not start")
		}
		done := time.Now()
		took = append(took, done.Sub(from))
		deciding += done.Sub(submitted)
		running = append(running, id)
		used += spec.MinNodes * int(spec.GRES[0].Count)
		for used > 72000 {
			x := r.next(len(running))
			out := s.record(running[x])
			used -= out.spec.MinNodes * int(out.spec.GRES[0].Count)
			if err := s.Apply(job.Ended{At: now, ID: out.id, State: job.Completed}); err != nil {
				b.Fatal(err)
			}
			s.Decide(now)
			running[x] = running[len(running)-1]
			running = running[:len(running)-1]
		}
	}
	b.StopTimer()
	reportCPU(b, before)
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s") // submitted, started and ended
	b.ReportMetric(float64(b.N)/deciding.Seconds(), "decisions/s")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
}

// BenchmarkGang1250 places a gang on 1,250 whole nodes of 10,000, of which 7,000 are busy.
func BenchmarkGang1250(b *testing.B) {
	s, _ := big(b, 0.7)
	id := job.ID(len(s.jobs))
	took := time.Duration(0)
	b.ResetTimer()
	for range b.N {
		before := cpu()
		id++
		apply(b, s, job.Submitted{At: 1, ID: id, Spec: gpus(1250, 8, job.Hour)})
		if out := s.Decide(1); len(out) != 1 {
			b.Fatalf("%d decisions", len(out))
		}
		b.StopTimer()
		took += cpu() - before
		apply(b, s, job.Ended{At: 1, ID: id, State: job.Completed})
		s.Decide(1)
		b.StartTimer()
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// backlog adds pending jobs behind a full cluster.
func backlog(b testing.TB, spec func(*rng) job.Spec, jobs int) *Scheduler {
	s, r := big(b, 1)
	id := job.ID(len(s.jobs))
	for range jobs {
		id++
		apply(b, s, job.Submitted{At: 1, ID: id, Spec: spec(r)})
	}
	s.Decide(1)
	if err := s.Check(); err != nil {
		b.Fatal(err)
	}
	return s
}

// shaped is a job with shapes, topology and limits.
func shaped(r *rng) job.Spec {
	p := philly(r)
	switch r.next(20) {
	case 0:
		p = gpus(1+r.next(16), 8, p.TimeLimit)
	case 1:
		p = gpus(2+r.next(8), 8, p.TimeLimit)
		p.Topology = job.Topology{Switches: 1, Wait: job.Forever}
	case 2:
		p = gpus(2<<r.next(3), 8, p.TimeLimit)
		p.Topology.Segment = 2
	case 3:
		p = gpus(1+r.next(8), 4, p.TimeLimit)
		p.Topology.Required = 2
	}
	return p
}

// BenchmarkReplan plans 100,000 pending jobs anew, in their order.
func BenchmarkReplan(b *testing.B) {
	for _, c := range []struct {
		name string
		spec func(*rng) job.Spec
	}{{"unconstrained", philly}, {"topology", shaped}} {
		b.Run(c.name, func(b *testing.B) {
			s := backlog(b, c.spec, 100_000)
			before := cpu()
			b.ResetTimer()
			for range b.N {
				s.replan(key{}, true)
				s.out, s.open = nil, job.Promised{}
			}
			reportCPU(b, before)
		})
	}
}

// BenchmarkOutrank is a job that comes before half of 10,000 pending ones, which are planned
// anew behind it.
func BenchmarkOutrank(b *testing.B) {
	s, r := big(b, 1)
	id := job.ID(len(s.jobs))
	submit := func(prio uint32) {
		id++
		spec := philly(r)
		spec.Priority = &prio
		apply(b, s, job.Submitted{At: 1, ID: id, Spec: spec})
	}
	for i := range 10000 {
		submit(uint32(1 + i%2*2))
	}
	s.Decide(1)
	before := cpu()
	b.ResetTimer()
	for range b.N {
		submit(2)
		s.Decide(1)
	}
	reportCPU(b, before)
}

// BenchmarkRepair is the end of one job with 100,000 pending.
func BenchmarkRepair(b *testing.B) {
	s := backlog(b, philly, 100_000)
	now := job.Time(1)
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		id := job.ID(0)
		for v := range s.Running {
			if id = v.ID; int(now)%7 == int(id)%7 {
				break
			}
		}
		now += 1000
		b.StartTimer()
		apply(b, s, job.Ended{At: now, ID: id, State: job.Completed})
		s.Decide(now)
	}
}

// BenchmarkExplain says why a job waits, with 100,000 pending: the last ones, jobs from
// anywhere in the queue, and those of a queue of 2,000.
func BenchmarkExplain(b *testing.B) {
	explain := func(b *testing.B, s *Scheduler, jobs, step int) {
		last, most := s.jobs[len(s.jobs)-1].id, time.Duration(0)
		before := cpu()
		b.ResetTimer()
		for n := range b.N {
			from := cpu()
			if _, err := s.Explain(last-job.ID(n*step%jobs), s.now); err != nil {
				b.Fatal(err)
			}
			most = max(most, cpu()-from)
		}
		reportCPU(b, before)
		b.ReportMetric(float64(most.Nanoseconds()), "max-cpu-ns")
	}
	s := backlog(b, shaped, 100_000)
	b.Run("last", func(b *testing.B) { explain(b, s, 100_000, 7) })
	b.Run("any", func(b *testing.B) { explain(b, s, 100_000, 9973) })
	s = backlog(b, shaped, 2000)
	b.Run("few", func(b *testing.B) { explain(b, s, 2000, 7) })
}

// BenchmarkFork makes a copy of a scheduler with 100,000 pending jobs.
func BenchmarkFork(b *testing.B) {
	s := backlog(b, philly, 100_000)
	b.ResetTimer()
	for range b.N {
		s.Fork()
	}
}

// BenchmarkRestore reads a snapshot with 100,000 pending jobs.
func BenchmarkRestore(b *testing.B) {
	s := backlog(b, philly, 100_000)
	var snapshot bytes.Buffer
	if err := s.Snapshot(&snapshot); err != nil {
		b.Fatal(err)
	}
	before := cpu()
	b.ResetTimer()
	for range b.N {
		if _, err := Restore(bytes.NewReader(snapshot.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(snapshot.Len())/1e6, "MB")
	reportCPU(b, before)
}

// BenchmarkMemory is what a scheduler with 100,000 pending jobs takes.
func BenchmarkMemory(b *testing.B) {
	var before, after runtime.MemStats
	for range b.N {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := backlog(b, philly, 100_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(s)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
}

// BenchmarkArray is an array without a throttle whose tasks are all given places at once: it
// takes twice as long for twice as many.
func BenchmarkArray(b *testing.B) {
	for _, n := range []int{25_000, 50_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			took := time.Duration(0)
			for range b.N {
				b.StopTimer()
				s := cluster(b, 100, 10)
				apply(b, s, job.Configured{Config: job.Config{MaxArray: uint32(n)}})
				spec := gpus(1, 1, job.Hour)
				spec.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: uint32(n - 1), Step: 1}}}
				apply(b, s, job.Submitted{At: 1, ID: 1, Spec: spec})
				runtime.GC()
				b.StartTimer()
				before := cpu()
				s.Decide(1)
				took += cpu() - before
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}
