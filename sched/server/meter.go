package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// meter is what /metrics shows beside what is counted when it is asked for.
type meter struct {
	submits  prometheus.Counter
	events   prometheus.Counter
	failures prometheus.Counter
	forwards prometheus.Counter
	missed   prometheus.Counter
	answers  prometheus.Counter
	commits  prometheus.Histogram
	turns    prometheus.Histogram
	jobs     *prometheus.GaugeVec
	nodes    *prometheus.GaugeVec
	tally    *tally // of "sdiag"
}

func newMeter(r *prometheus.Registry) *meter {
	m := &meter{
		submits:  prometheus.NewCounter(prometheus.CounterOpts{Name: "gangway_submitted_jobs_total", Help: "Jobs and arrays that were taken."}),
		events:   prometheus.NewCounter(prometheus.CounterOpts{Name: "gangway_stored_events_total", Help: "Events that were made durable."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "gangway_store_failures_total", Help: "Batches that the store did not take."}),
		forwards: prometheus.NewCounter(prometheus.CounterOpts{Name: "gangway_forwarded_commands_total", Help: "Commands to nodes that other agents were to pass on."}),
		missed:   prometheus.NewCounter(prometheus.CounterOpts{Name: "gangway_missed_commands_total", Help: "Commands of these that went the direct way after all."}),
		answers:  prometheus.NewCounter(prometheus.CounterOpts{Name: "gangway_relayed_answers_total", Help: "Answers of nodes that other agents have passed on."}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gangway_commit_seconds", Help: "How long it takes to make a batch durable.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		turns: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gangway_turn_seconds", Help: "How long the core takes for what was queued.", Buckets: prometheus.ExponentialBuckets(0.00005, 3, 12),
		}),
		jobs:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gangway_jobs", Help: "Jobs by state."}, []string{"state"}),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gangway_nodes", Help: "Nodes by state."}, []string{"state"}),
		tally: newTally(time.Now()),
	}
	r.MustRegister(m.submits, m.events, m.failures, m.forwards, m.missed, m.answers, m.commits, m.turns, m.jobs, m.nodes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *meter) committed(d time.Duration, events int) {
	m.commits.Observe(d.Seconds())
	m.events.Add(float64(events))
	m.tally.cycle(commitsOf, d, events)
}

// turned counts a turn of the core, and the decisions in it.
func (m *meter) turned(d, deciding time.Duration, decided int) {
	m.turns.Observe(d.Seconds())
	m.tally.cycle(turnsOf, d, decided)
	if decided > 0 {
		m.tally.cycle(cyclesOf, deciding, decided)
	}
}

// count sets what is counted when it is asked for.
func (c *core) count() {
	pending := 0
	for range c.sched.Pending {
		pending++
	}
	c.meter.jobs.WithLabelValues("PENDING").Set(float64(pending))
	c.meter.jobs.WithLabelValues("RUNNING").Set(float64(len(c.runs)))
	c.meter.nodes.Reset()
	for _, n := range c.nodes {
		c.meter.nodes.WithLabelValues(c.nodeWord(n)).Inc()
	}
}
