package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// usual is a job as people submit them: a script, and an environment of some kilobytes.
func usual(hold bool) *api.Submit {
	var env [][]byte
	for i := range 60 {
		env = append(env, fmt.Appendf(nil, "VARIABLE_%d=/usr/share/some/where/%d/and/further/down", i, i))
	}
	return &api.Submit{
		Spec: job.Spec{Name: "train", MinNodes: 1, CPUsPerTask: 1, TimeLimit: job.Hour, Hold: hold},
		Program: &job.Program{
			Script: []byte("#!/bin/sh\n#SBATCH -N1\nsrun true\n"), Args: [][]byte{[]byte("/home/u/train.sh")}, Environ: env,
			Cwd: []byte("/home/u"), Limits: map[string]uint64{"NOFILE": 1024, "CORE": 0},
		},
		SubmitDir: []byte("/home/u"), SubmitHost: "login1",
	}
}

// stream submits n jobs over one connection.
func (w *world) stream(n int, q *api.Submit) {
	w.t.Helper()
	line, err := json.Marshal(q)
	if err != nil {
		w.t.Fatal(err)
	}
	line = append(line, '\n')
	r, pipe := io.Pipe()
	go func() {
		b := bufio.NewWriterSize(pipe, 1<<16)
		for range n {
			_, _ = b.Write(line)
		}
		_ = b.Flush()
		_ = pipe.Close()
	}()
	req, err := http.NewRequest("POST", "http://c/v1/submit", r)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	count := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); count++ {
		if bytes.Contains(lines.Bytes(), []byte("Error")) {
			w.t.Fatalf("refused: %s", lines.Bytes())
		}
	}
	if count != n {
		w.t.Fatalf("%d answers, want %d", count, n)
	}
}

// processorTime is what this process has used, on a machine that may be busy otherwise.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSubmits is how many jobs a second are durable, over one connection.
func BenchmarkSubmits(b *testing.B) {
	w := newWorld(b, 4)
	q, used := usual(true), processorTime(b)
	for b.Loop() {
		w.stream(1000, q)
	}
	b.ReportMetric(float64((processorTime(b)-used).Microseconds())/float64(1000*b.N), "cpu-us/job")
	b.ReportMetric(float64(1000*b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkJobs is how many jobs a second go from submission to their end, with agents
// that only pretend.
func BenchmarkJobs(b *testing.B) {
	w := newWorld(b, 4)
	q := usual(false)
	for b.Loop() {
		w.stream(200, q)
		w.until("all have ended", func() bool {
			var page api.Page[api.Job]
			w.get("/v1/jobs", &page)
			return len(page.Items) == 0
		})
	}
	b.ReportMetric(float64(200*b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkRestart is how long a controller with 100,000 jobs takes to start after a crash,
// and what it has in memory.
func BenchmarkRestart(b *testing.B) {
	const n = 100000
	w := newWorld(b, 4)
	w.stream(n, usual(true))
	var sum, busy time.Duration
	for b.Loop() {
		w.crash()
		began, used := time.Now(), processorTime(b)
		w.start()
		sum += time.Since(began)
		busy += processorTime(b) - used
	}
	b.ReportMetric(busy.Seconds()/float64(b.N), "cpu-s/restart")
	b.ReportMetric(sum.Seconds()/float64(b.N), "s/restart")
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB")
}

// BenchmarkQueue is how long the answer with 10,000 jobs takes.
func BenchmarkQueue(b *testing.B) {
	w := newWorld(b, 4)
	w.stream(10000, usual(false))
	for b.Loop() {
		var page api.Page[json.RawMessage]
		w.get("/v1/jobs", &page)
		if len(page.Items) < 5000 {
			b.Fatalf("%d jobs", len(page.Items))
		}
	}
}

// BenchmarkLaunch is how long a step of 256 nodes with 8 ranks each takes from its request to
// the moment at which all ranks are said to run, with agents that only pretend to run something:
// each by its own session, and by a tree.
func BenchmarkLaunch(b *testing.B) {
	b.Run("direct", func(b *testing.B) { benchmarkLaunch(b, 256, 1<<20) })
	b.Run("tree", func(b *testing.B) { benchmarkLaunch(b, 256, 32) })
}

func benchmarkLaunch(b *testing.B, nodes, width int) {
	w := newWorldOf(b, nodes, func(c *job.Cluster) { c.TreeWidth = width })
	w.runFor(0)
	id := w.allocation(nodes)
	used := processorTime(b)
	for b.Loop() {
		s := w.step(id, stepRequest(nodes, 8*nodes))
		path := fmt.Sprintf("/v1/jobs/%v/steps/%v", id, s.Key.Step)
		for now := (api.Step{}); now.Phase != "running"; {
			w.get(path, &now)
		}
		b.StopTimer()
		w.do("DELETE", path, nil, nil)
		w.stepEnd(s)
		b.StartTimer()
	}
	b.ReportMetric(float64((processorTime(b)-used).Microseconds())/float64(b.N), "cpu-us/launch")
}
