package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Result is what came of one run. Times are in seconds of the simulation, latencies in
// those of the machine.
type Result struct {
	Policy   string `json:"policy"`
	Model    bool   `json:"model"` // our imitation of a policy, not its program
	Limits   Limits `json:"limits"`
	Started  int    `json:"started"` // runs; more than jobs if some were requeued
	Complete int    `json:"completed"`
	Timeouts int    `json:"timed_out"`
	Failed   int    `json:"failed"`
	Refused  int    `json:"refused"`      // can never run here
	Stuck    int    `json:"never_able"`   // waited to the end of the simulation
	WhyNot   []Why  `json:"refused_jobs"` // the first ones

	Wait     Distribution `json:"wait_s"`
	Slowdown Distribution `json:"bounded_slowdown"` // bounded by jobs of 10 s
	Makespan float64      `json:"makespan_s"`
	// Utilisation is of GPUs where the cluster has them, else of CPUs, from the first
	// submission to the last end; UtilisationLoaded to the last submission.
	Utilisation       float64 `json:"utilisation"`
	UtilisationLoaded float64 `json:"utilisation_while_submitted"`
	GPUHours          float64 `json:"gpu_hours_delivered"`
	CPUHours          float64 `json:"cpu_hours_delivered"`
	GPUHoursLost      float64 `json:"gpu_hours_lost"` // in runs that were begun anew
	MostWaiting       int     `json:"most_waiting"`

	Spread  Spread   `json:"leaf_spread"`
	Promise Promises `json:"promises"`

	Decide       Latency `json:"decide_latency"` // of each call that decides
	Apply        Latency `json:"apply_latency"`  // of each event from outside
	DecisionsSec float64 `json:"decisions_per_s"`
	WallSeconds  float64 `json:"wall_s"` // of the whole run
	DecisionHash string  `json:"decisionHash"`

	begin, lastSubmit, lastEnd job.Time
	applied, decided           histogram
	started, moments           int
	wall                       time.Duration
	steps                      []step
	bars                       []bar
	waits                      []float64 // sorted
	capacity                   int       // GPUs, or CPUs
	onGPUs                     bool
	nodes                      []node
}

// Why is a job that was refused, and the reason.
type Why struct {
	Line int    `json:"line"`
	Why  string `json:"why"`
}

// Distribution is one in short.
type Distribution struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Spread compares over how many leaf switches jobs of several nodes were spread with how
// few would have done at that moment.
type Spread struct {
	Jobs    int     `json:"jobs"`    // of more than one node, where there are several leaves
	Optimal float64 `json:"optimal"` // the part of these that had as few as could be
	Ratio   float64 `json:"ratio"`   // leaves used to leaves needed, over all
}

// Promises compares starts with the first start that a job was promised. What comes before
// a job may take its promise back again and again: a job with more priority, or a failure.
type Promises struct {
	Jobs     int          `json:"jobs"`     // that waited and were promised a start
	Error    Distribution `json:"error_s"`  // how far off the promise was
	Bias     float64      `json:"bias_s"`   // mean of start less promise: negative is earlier
	Late     int          `json:"late"`     // jobs that started after it
	Broken   int          `json:"broken"`   // jobs of which a promise was taken back
	Breaches int          `json:"breaches"` // how often that was, each with its reason
	Reasons  []Reason     `json:"reasons"`  // of these
	// Unsaid are starts after a promise that nobody had taken back: a bug.
	Unsaid int `json:"late_without_reason"`
}

// Reason is why promises were taken back.
type Reason struct {
	Why   string `json:"why"` // without the numbers and names
	Times int    `json:"times"`
}

// node is a node in the Gantt chart.
type node struct {
	name string
	leaf int32
	size int32 // GPUs, or CPUs
}

// bar is a run in the Gantt chart.
type bar struct {
	start, end job.Time
	id         job.ID
	nodes      []int32
	shares     []int32 // GPUs, or CPUs, on each of these
	size       int     // in all
}

// tau bounds slowdowns: jobs shorter than this count as so long.
const tau = 10.0

// keepWhy is how many refused jobs are named.
const keepWhy = 5

// keepReasons is how many kinds of reasons are told apart.
const keepReasons = 16

func (r *Result) refuse(j *Job, err error) {
	r.Refused++
	if len(r.WhyNot) < keepWhy {
		r.WhyNot = append(r.WhyNot, Why{j.Line, err.Error()})
	}
}

// whyBroken counts the reasons of breaches. Jobs and nodes are in them by their names, so
// they are cut to the words.
func (r *Result) whyBroken(why string) {
	words := strings.Fields(why)
	for i, w := range words {
		if i > 0 && (words[i-1] == "job" || words[i-1] == "node" || words[i-1] == "switch" || words[i-1] == "partition") || strings.ContainsAny(w, "0123456789") {
			words[i] = "X"
		}
	}
	why = strings.Join(words, " ")
	for i := range r.Promise.Reasons {
		if r.Promise.Reasons[i].Why == why {
			r.Promise.Reasons[i].Times++
			return
		}
	}
	if len(r.Promise.Reasons) == keepReasons {
		r.Promise.Reasons[keepReasons-1] = Reason{"others", r.Promise.Reasons[keepReasons-1].Times + 1}
		return
	}
	r.Promise.Reasons = append(r.Promise.Reasons, Reason{why, 1})
}

func (r *Result) count(s job.State) {
	switch s {
	case job.Completed:
		r.Complete++
	case job.Timeout:
		r.Timeouts++
	default:
		r.Failed++
	}
}

// finish makes the figures of what was noted.
func (s *simulation) finish(offset job.Duration) {
	r := s.result
	r.capacity = max(s.totals.gpus, 0)
	onGPUs := s.totals.gpus > 0
	if !onGPUs {
		r.capacity = s.totals.cpus
	}
	var waits, slowdowns, errs []float64
	bias := 0.0
	for i := range s.outcome {
		o, j := &s.outcome[i], &s.trace.Jobs[i]
		submit := j.Submit.Add(offset)
		r.lastSubmit = max(r.lastSubmit, submit)
		r.lastEnd = max(r.lastEnd, o.end)
		if o.breached {
			r.Promise.Broken++
		}
		r.GPUHoursLost += hours(o.killed) * float64(o.share.gpus)
		if o.start == 0 {
			if !o.refused && o.end == 0 {
				r.Stuck++
			}
			continue
		}
		wait, run := seconds64(o.start.Sub(submit)), seconds64(o.end.Sub(o.start))
		waits = append(waits, wait)
		slowdowns = append(slowdowns, max(1, (wait+run)/max(run, tau)))
		r.GPUHours += run / 3600 * float64(o.share.gpus)
		r.CPUHours += run / 3600 * float64(o.share.cpus)
		if o.promised != 0 && o.promised > submit {
			off := seconds64(o.start.Sub(o.promised))
			errs = append(errs, math.Abs(off))
			if bias += off; off > 0 {
				r.Promise.Late++
			}
		}
		size := int(o.share.gpus)
		if !onGPUs {
			size = int(o.share.cpus)
		}
		b := bar{o.start, o.end, job.ID(i + 1), o.nodes, make([]int32, len(o.shares)), size}
		for k, part := range o.shares {
			if b.shares[k] = part.gpus; !onGPUs {
				b.shares[k] = part.cpus
			}
		}
		r.bars = append(r.bars, b)
	}
	r.Wait, r.Slowdown, r.Promise.Error = distribution(waits), distribution(slowdowns), distribution(errs)
	r.waits = waits // sorted by now
	r.Promise.Jobs = len(errs)
	if len(errs) > 0 {
		r.Promise.Bias = round(bias/float64(len(errs)), 3)
	}
	r.lastEnd = max(r.lastEnd, r.begin) // where nothing ran
	r.Makespan = seconds64(r.lastEnd.Sub(r.begin))
	r.steps = s.meter.steps
	r.Utilisation = round(r.used(onGPUs, r.lastEnd), 6)
	r.UtilisationLoaded = round(r.used(onGPUs, r.lastSubmit), 6)
	r.GPUHours, r.CPUHours, r.GPUHoursLost = round(r.GPUHours, 3), round(r.CPUHours, 3), round(r.GPUHoursLost, 3)
	for _, st := range r.steps {
		r.MostWaiting = max(r.MostWaiting, int(st.wait))
	}
	m := s.meter
	if r.Spread = (Spread{Jobs: m.placed}); m.placed > 0 {
		r.Spread.Optimal = round(float64(m.optimal)/float64(m.placed), 6)
		r.Spread.Ratio = round(float64(m.spread)/float64(max(m.min, 1)), 6)
	}
	r.Started = r.started
	r.Decide, r.Apply = r.decided.latency(), r.applied.latency()
	if busy := r.decided.sum + r.applied.sum; busy > 0 {
		r.DecisionsSec = round(float64(r.started)/busy.Seconds(), 0)
	}
	r.WallSeconds = round(r.wall.Seconds(), 3)
	r.DecisionHash = fmt.Sprintf("%016x", s.policy.Hash())
	r.onGPUs, r.nodes = onGPUs, m.nodes
}

// used is the part of the capacity that was in use until a moment.
func (r *Result) used(gpus bool, until job.Time) float64 {
	if until <= r.begin || r.capacity == 0 {
		return 0
	}
	sum := 0.0
	for i, st := range r.steps {
		end := until
		if i+1 < len(r.steps) {
			end = min(end, r.steps[i+1].at)
		}
		if end > st.at {
			sum += float64(end.Sub(st.at)) * float64(st.value(gpus))
		}
	}
	return sum / float64(until.Sub(r.begin)) / float64(r.capacity)
}

func (s step) value(gpus bool) int32 {
	if gpus {
		return s.gpus
	}
	return s.cpus
}

// distribution sorts values and sums them up. Quantiles are values that occur (nearest
// rank).
func distribution(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	slices.SortFunc(values, func(a, b float64) int { return cmp.Compare(a, b) })
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 {
		return round(values[max(int(math.Ceil(q*float64(len(values))))-1, 0)], 3)
	}
	return Distribution{Mean: round(sum/float64(len(values)), 3), P50: at(0.5), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

func seconds64(d job.Duration) float64 { return float64(d) / float64(job.Second) }

func hours(d job.Duration) float64 { return float64(d) / float64(job.Hour) }

// round is v with so many digits after the point: results are to be read and compared.
func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
