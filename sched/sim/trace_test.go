package sim_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched/sim"
)

const (
	swfText = `; Version: 2
; UnixStartTime: 1000000
; MaxNodes: 16
; MaxProcs: 128
; Note: three jobs
1 0 5 100 8 -1 -1 8 200 2048 1 3 4 -1 1 -1 -1 -1 more fields 19
  2 10 -1 60.5 4 -1 -1 -1 -1 -1 1 -1 -1 -1 1 -1 -1 -1

3 20 -1 -1 4 -1 -1 4 600 -1 5 3 4 -1 1 -1 -1 -1
4 5 -1 30 1 -1 -1 1 -1 -1 0 3 4 -1 1 -1 -1 -1
`
	phillyText = `timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.5,16,2951.0,6214e9
2017-10-09 06:13:04,0,1,0,6214e9
`
	openbText = `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,12000,16384,1,1000,,LS,Running,0,12537496,10
b,6000,12288,1,460,,LS,Running,427061,12902960,427061
c,20000,65536,0,0,,LS,Running,2759674,12902960,2759676
d,500,1024,8,1000,V100M16|V100M32,LS,Running,5,100,50
e,500,1024,8,1000,,LS,Pending,5,100,
`
	sacctText = `JobID|JobName|User|Account|Partition|Submit|Start|End|Elapsed|Timelimit|AllocTRES|State
10|train|ann|lab|gpu|2026-01-02T03:04:05|2026-01-02T03:05:00|2026-01-02T04:05:00|01:00:00|1-00:00:00|billing=64,cpu=64,gres/gpu:h100=8,gres/gpu=8,mem=900G,node=2|COMPLETED
10.batch|batch||lab||2026-01-02T03:04:05|2026-01-02T03:05:00|2026-01-02T04:05:00|01:00:00||cpu=64|COMPLETED
11_3|array|bob|lab|gpu|2026-01-02T03:04:04|Unknown|Unknown|00:00:00|UNLIMITED||PENDING
12|c|bob|lab|cpu|2026-01-02T03:04:00|2026-01-02T03:04:00|2026-01-02T03:04:10|00:00:10|Partition_Limit|cpu=4,mem=16G,node=1|CANCELLED by 0
13|r|bob|lab|cpu|2026-01-02T03:04:00|2026-01-02T03:04:00|Unknown|00:00:10|10|cpu=4|RUNNING
`
	kueueText = `# a comment
topology:
  name: "t"
  levels:
    - name: rack
      count: 2
    - name: node
      count: 4
      capacity:
        cpu: "8"
cohorts:
  - className: cohort
    count: 2
    queuesSets:
    - className: cq
      count: 3
      nominalQuota: "4"
      borrowingLimit: 8
      workloadsSets:
      - count: 5
        creationIntervalMs: 100
        workloads:
        - className: small   # of two pods
          runtimeMs: 200
          priority: 50
          request: "500m"
          podCount: 2
          tasConstraint: "required"
        - className: large
          runtimeMs: 1_000
          request: 2
`
)

func read(t *testing.T, text string, o sim.ReadOptions) *sim.Trace {
	t.Helper()
	trace, err := sim.Read(strings.NewReader(text), o)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func leftOut(t *sim.Trace) map[string]int {
	all := map[string]int{}
	for _, l := range t.LeftOut {
		all[l.Why] = l.Jobs
	}
	return all
}

func TestReadSWF(t *testing.T) {
	trace := read(t, swfText, sim.ReadOptions{Strict: true})
	if trace.Format != sim.SWF || trace.Procs != 128 || trace.Nodes != 16 || len(trace.Jobs) != 3 || leftOut(trace)["never ran"] != 1 {
		t.Fatalf("%+v", trace)
	}
	first, second, third := trace.Jobs[0], trace.Jobs[1], trace.Jobs[2]
	if first.Submit != 1_000_000_000 || first.Run != 100*job.Second || first.Limit != 200*job.Second || first.CPUs != 8 || first.Memory != 16 || first.User != "user3" || first.Line != 6 {
		t.Errorf("%+v", first)
	}
	if second.Submit != 1_000_005_000 || second.Limit != 0 || second.Line != 10 {
		t.Errorf("jobs are not in the order of their submission: %+v", second)
	}
	if third.Run != 60*job.Second || third.CPUs != 4 {
		t.Errorf("%+v", third)
	}
}

func TestReadGzip(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(swfText)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	trace, err := sim.Read(bytes.NewReader(whole), sim.ReadOptions{})
	if err != nil || len(trace.Jobs) != 3 {
		t.Errorf("%+v, %v", trace, err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-7] ^= 1 // of the checksum
	for what, text := range map[string][]byte{"cut off": whole[:len(whole)-9], "all but empty": whole[:5], "another checksum": flipped, "noise": append(bytes.Clone(whole[:10]), 0xff, 0xff, 0xff)} {
		if _, err := sim.Read(bytes.NewReader(text), sim.ReadOptions{}); !errors.Is(err, sim.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestReadPhilly(t *testing.T) {
	trace := read(t, phillyText, sim.ReadOptions{Strict: true})
	if trace.Format != sim.Philly || len(trace.Jobs) != 2 || leftOut(trace)["never ran"] != 1 {
		t.Fatalf("%+v", trace)
	}
	if j := trace.Jobs[0]; j.GPUs != 16 || j.Run != 2951500 || j.Submit != 1507529583000 || j.Account != "6214e9" || j.Line != 3 {
		t.Errorf("%+v", j)
	}
}

func TestReadOpenB(t *testing.T) {
	trace := read(t, openbText, sim.ReadOptions{Strict: true})
	if trace.Format != sim.OpenB || len(trace.Jobs) != 2 {
		t.Fatalf("%+v", trace)
	}
	if l := leftOut(trace); l["part of a GPU"] != 1 || l["no GPU"] != 1 || l["never ran"] != 1 {
		t.Errorf("%v", l)
	}
	if j := trace.Jobs[1]; j.GPUs != 8 || j.CPUs != 1 || j.Run != 50*job.Second || strings.Join(j.AnyFeature, " ") != "V100M16 V100M32" || j.Nodes != 1 {
		t.Errorf("%+v", j)
	}
	nodes, err := sim.ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\nx,64000,262144,2,P100\ny,32000,1000,0,\n"))
	if err != nil || len(nodes.Nodes) != 2 || nodes.Nodes[0].GRES[0].Count != 2 || nodes.Nodes[0].Features[0] != "P100" || nodes.Nodes[1].CPUs != 32 {
		t.Errorf("%+v, %v", nodes, err)
	}
	for _, bad := range []string{"", "sn,gpu\nx,1\n", "sn,cpu_milli,memory_mib,gpu,model\nx,-1,2,3,\n", "sn,cpu_milli,memory_mib,gpu,model\n,1,2,3,\n", "sn,cpu_milli,memory_mib,gpu,model\nx,1,2,99,\n"} {
		if _, err := sim.ReadNodes(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestReadSacct(t *testing.T) {
	trace := read(t, sacctText, sim.ReadOptions{Strict: true})
	if trace.Format != sim.Sacct || len(trace.Jobs) != 2 {
		t.Fatalf("%+v", trace)
	}
	if l := leftOut(trace); l["never ran"] != 1 || l["not ended yet"] != 1 {
		t.Errorf("%v", l)
	}
	if j := trace.Jobs[1]; j.GPUs != 8 || j.CPUs != 64 || j.Nodes != 2 || j.Run != job.Hour || j.Limit != job.Day || j.Memory != 900<<10 || j.User != "ann" || j.Partition != "gpu" || j.Submit != 1767323045000 {
		t.Errorf("%+v", j)
	}
	if j := trace.Jobs[0]; j.CPUs != 4 || j.Run != 10*job.Second || j.Limit != 0 {
		t.Errorf("%+v", j)
	}
	raw := read(t, "JobIDRaw|Submit|ElapsedRaw|NCPUS|NNodes\n5|2026-01-02T03:04:05|77|4|2\n", sim.ReadOptions{Strict: true})
	if j := raw.Jobs[0]; j.Run != 77*job.Second || j.CPUs != 4 || j.Nodes != 2 {
		t.Errorf("%+v", j)
	}
	ends := read(t, "JobID|Submit|Start|End|ReqCPUS\n5|2026-01-02T03:04:05|2026-01-02T03:04:05|2026-01-02T03:04:15|4\n", sim.ReadOptions{Strict: true})
	if j := ends.Jobs[0]; j.Run != 10*job.Second {
		t.Errorf("%+v", j)
	}
}

func TestReadKueue(t *testing.T) {
	trace := read(t, kueueText, sim.ReadOptions{})
	if trace.Format != sim.Kueue || len(trace.Jobs) != 2*3*5*2 {
		t.Fatalf("%d jobs", len(trace.Jobs))
	}
	c := trace.Cluster
	if len(c.Nodes) != 8 || c.Nodes[0].CPUs != 16 || len(c.Network.Switches) != 3 || len(c.Config.Licenses) != 2 || c.Config.Licenses[0].Count != 24 {
		t.Errorf("%+v", c)
	}
	small, large := trace.Jobs[0], trace.Jobs[1]
	if small.Submit != 100 || small.CPUs != 2 || small.TaskCPUs != 1 || small.Required != 1 || *small.Priority != 51 || small.Run != 200 {
		t.Errorf("%+v", small)
	}
	if large.CPUs != 4 || large.Run != 1000 || large.Licenses[0].Count != 4 {
		t.Errorf("%+v", large)
	}
	quotas := read(t, strings.ReplaceAll(kueueText[strings.Index(kueueText, "cohorts"):], "borrowingLimit: 8", "borrowingLimit: 1"), sim.ReadOptions{})
	if c := quotas.Cluster; len(c.Nodes) != 1 || c.Nodes[0].CPUs != 48 || len(c.Config.Licenses) != 8 || len(quotas.Jobs[0].Licenses) != 2 {
		t.Errorf("%+v", c)
	}
}

// TestBroken: a broken line is named by its number and what would be right; it is left out
// or refused.
func TestBroken(t *testing.T) {
	for _, c := range []struct {
		text, want string
		line       int
	}{
		{swfText + "1 2 3\n", "3 fields: want 18", 11},
		{strings.Replace(swfText, "60.5", "sixty", 1), `field 4 is "sixty": want a number`, 7},
		{strings.Replace(swfText, "60.5", "1e300", 1), `field 4 is "1e300": want a number`, 7},
		{strings.Replace(swfText, "2 10 -1", "2 -9999999 -1", 1), "want a time of submission", 7},
		{strings.Replace(swfText, "60.5 4", "60.5 -4", 1), "-4 CPUs", 7},
		{phillyText + "yesterday,1,1,1,x\n", `timestamp "yesterday": want YYYY-MM-DD HH:MM:SS`, 5},
		{phillyText + "2017-10-09 07:01:55,-1,1,1,x\n", `duration "-1": want seconds`, 5},
		{phillyText + "2017-10-09 07:01:55,NaN,1,1,x\n", `duration "NaN": want seconds`, 5},
		{phillyText + "2017-10-09 07:01:55,5,1.5,1,x\n", `num_gpus "1.5": want a whole number`, 5},
		{phillyText + "2017-10-09 07:01:55,5,99999999999,1,x\n", `num_gpus "99999999999": want a whole number`, 5},
		{phillyText + "2017-10-09 07:01:55,5,0,1,x\n", `neither CPUs nor GPUs`, 5},
		{phillyText + "2017-10-09\n", "1 fields: want 5", 5},
		{openbText + "f,1,2\n", "3 fields: want 11", 7},
		{openbText + "f,-5,1024,8,1000,,LS,Running,5,100,50\n", `cpu_milli "-5": want a whole number`, 7},
		{sacctText + "14|x\n", "2 fields: want 12", 7},
		{strings.Replace(sacctText, "gres/gpu=8", "gres/gpu=x", 1), "tres=gres/gpu=x: want NAME=NUMBER", 2},
		{strings.Replace(sacctText, "1-00:00:00", "soon", 1), "time=soon: want minutes", 2},
		{strings.Replace(sacctText, "2026-01-02T03:04:05|2026-01-02T03:05", "Tuesday|2026-01-02T03:05", 1), `time "Tuesday": want YYYY-MM-DDTHH:MM:SS`, 2},
	} {
		_, err := sim.Read(strings.NewReader(c.text), sim.ReadOptions{Strict: true})
		line, ok := errors.AsType[*sim.LineError](err)
		if !ok || line.Line != c.line || !strings.Contains(err.Error(), c.want) {
			t.Errorf("strict: %v; want line %d: %s", err, c.line, c.want)
		}
		trace, err := sim.Read(strings.NewReader(c.text), sim.ReadOptions{})
		if err != nil || trace.BrokenCount != 1 || trace.Broken[0].Line != c.line || len(trace.Jobs) == 0 {
			t.Errorf("%v, %+v; want line %d left out", err, trace, c.line)
		}
	}
}

// TestUnreadable: what is no trace at all.
func TestUnreadable(t *testing.T) {
	for text, want := range map[string]string{
		"": "it is empty", " \n\n": "it is empty",
		"hello\nworld\n":                  "format is not known",
		"; MaxProcs: 4\n":                 "no job in it",
		"; x\n1 2\n":                      "line 2: 2 fields: want 18",
		"timestamp,duration,num_gpus,x\n": "no job in it",
		"name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n": "line 1: the header has no column creation_time",
		"JobID|State\n5|COMPLETED\n":                                  "line 1: the header has no column Submit",
		"cohorts:\n\t- a\n":                                           "line 2: found character that cannot start any token",
		"cohorts:\n- count: -1\n":                                     "line 2: count \"-1\": want a whole number",
		"cohorts:\n- count: 1\n  count: 2\n":                          "line 3: count is there twice",
		"cohorts: [a, b]\n":                                           "line 1: cohorts: want fields in each element",
		"cohorts: 5\n":                                                "line 1: cohorts: want a list",
		"topology: {levels: &a [{count: *a}]}\ncohorts:\n":            "line 1: an alias",
		"cohorts:\n- queuesSets:\n  - nominalQuota: x\n":              "line 3: nominalQuota \"x\": want a quantity",
		"cohorts:\n  - a: 1\n b: 2\n":                                 "line 2: did not find expected key",
	} {
		if _, err := sim.Read(strings.NewReader(text), sim.ReadOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
	if _, err := sim.Read(strings.NewReader(swfText), sim.ReadOptions{Format: "xml"}); err == nil {
		t.Error("a format that there is not")
	}
	if _, err := sim.Open("/nonexistent/trace", sim.ReadOptions{}); err == nil {
		t.Error("a file that there is not")
	}
	if trace := read(t, swfText, sim.ReadOptions{Max: 2}); len(trace.Jobs) != 2 {
		t.Errorf("%d jobs of 2", len(trace.Jobs))
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{swfText, phillyText, openbText, sacctText, kueueText} {
		f.Add([]byte(text), "")
		f.Add([]byte(text), "kueue")
	}
	f.Fuzz(func(t *testing.T, text []byte, format string) {
		trace, err := sim.Read(bytes.NewReader(text), sim.ReadOptions{Format: sim.Format(format), Max: 1000})
		if err != nil {
			return
		}
		last := job.Time(0)
		for _, j := range trace.Jobs {
			if j.Run <= 0 || j.CPUs < 0 || j.GPUs < 0 || j.CPUs+j.GPUs == 0 || j.Submit < last {
				t.Fatalf("%+v after %d", j, last)
			}
			last = j.Submit
		}
		if c, err := sim.ReadNodes(bytes.NewReader(text)); err == nil && len(c.Nodes) == 0 {
			t.Fatal("no nodes")
		}
	})
}
