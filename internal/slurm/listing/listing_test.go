package listing_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// noon is the moment of all tests: Sunday, 2026-03-01 12:00 UTC.
const noon = job.Time(1772366400000)

func view() *listing.View {
	return &listing.View{
		Now: noon, Zone: time.UTC, BitstrLen: 64, Cluster: "test",
		User:  func(uid uint32) string { return map[uint32]string{1000: "alice", 1001: "bob"}[uid] },
		Group: func(uint32) string { return "users" },
	}
}

// jobs are one of each kind.
func jobs() []api.Job {
	return []api.Job{
		{
			ID: 11, Name: "train", User: "alice", UID: 1000, GID: 100, Partition: "gpu", State: job.Running, Reason: "None", Priority: 9,
			Submit: noon - 7200000, Eligible: noon - 7200000, Start: noon - 3723000, Limit: 2 * job.Day, Nodes: 2, Tasks: 16, CPUs: 256, GRES: "gpu:h100:8",
			Memory: job.Memory{MiB: 900 << 10, Per: job.PerNode}, NodeList: []string{"n01", "n02"}, Batch: true, Command: "/home/alice/train.sh",
			Cwd: "/home/alice", Output: "/home/alice/slurm-11.out", Image: "torch:1",
		},
		{
			ID: 12, Array: &job.ArrayFacts{Job: 12}, Waiting: []job.Range{{First: 4, Last: 7, Step: 1}}, Throttle: 2, Name: "embed", User: "bob", UID: 1001,
			Partition: "cpu", Reason: "Priority", Priority: 5, Submit: noon - 60000, Eligible: noon - 60000, Expected: noon + 3600000, Limit: job.Hour, Nodes: 1, Tasks: 1, CPUs: 4,
		},
		{
			ID: 13, Array: &job.ArrayFacts{Job: 12, Task: 3}, Name: "embed", User: "bob", UID: 1001, Partition: "cpu", State: job.Failed, Reason: "NonZeroExitCode",
			Submit: noon - 60000, Start: noon - 50000, End: noon - 40000, Limit: job.Hour, Nodes: 1, Tasks: 1, CPUs: 4, NodeList: []string{"n03"}, Exit: 3,
		},
		{
			ID: 14, Name: "gone", User: "alice", UID: 1000, Partition: "gpu", State: job.CancelledState, Reason: "None", Submit: noon - 60000,
			Start: noon - 50000, End: noon - 40000, Nodes: 1, Tasks: 1, CPUs: 1, NodeList: []string{"n01"}, Signal: 9, CancelledBy: "0",
		},
	}
}

// past is jobs with steps.
func past() []api.Past {
	var all []api.Past
	for _, j := range jobs() {
		p := api.Past{Job: j}
		if j.Start != 0 {
			p.Steps = []api.Step{{
				Key: job.StepKey{Job: j.ID, Attempt: 1, Step: job.BatchStep, Try: 1}, Name: "batch", State: j.State, Nodes: j.NodeList[:1], Tasks: 1, CPUs: j.CPUs / j.Nodes,
				Start: j.Start, End: j.End, Exit: j.Exit, Signal: j.Signal, Usage: job.Usage{User: 61234, System: 500, MaxRSS: 1234 << 10, Read: 3 << 20},
			}}
		}
		all = append(all, p)
	}
	return all
}

// environ is an environment of one variable.
func environ(name, value string) func(string) string {
	return func(asked string) string {
		if asked == name {
			return value
		}
		return ""
	}
}

// queueText is what squeue prints of the jobs.
func queueText(t *testing.T, v *listing.View, getenv func(string) string, args ...string) string {
	t.Helper()
	q, err := listing.ParseQueue(args, getenv, people{})
	if err != nil {
		t.Fatalf("squeue %q: %v", args, err)
	}
	q.Query.Recent = true // jobs has some that have ended
	var w bytes.Buffer
	if err := q.Print(&w, v, q.Select(v, jobs())); err != nil {
		t.Fatal(err)
	}
	return w.String()
}

func TestQueueFormats(t *testing.T) {
	for _, c := range []struct{ name, value, args, want string }{
		{"", "", "-h -o %i", "12_3 12_[4-7%2] 14 11"},
		{"SQUEUE_FORMAT", "%i|%t", "-h", "12_3|F 12_[4-7%2]|PD 14|CA 11|R"},
		{"SQUEUE_FORMAT", "%i|%t", "-h -o %A", "13 12 14 11"},
		{"SQUEUE_FORMAT2", "jobid:.4,state:3", "-h", "13FAI 12PEN 14CAN 11RUN"},
		{"SQUEUE_SORT", "-i", "-h -o %A", "14 13 12 11"},
		{"", "", "-h -o %A -S j,-i", "13 12 14 11"},
		{"", "", "-h -o %b", "N/A N/A N/A gres/gpu:h100:8"},
		{"", "", "-h -o %M|%l|%L", "0:10|1:00:00|59:50 0:00|1:00:00|1:00:00 0:10|UNLIMITED|UNLIMITED 1:02:03|2-00:00:00|1-22:57:57"},
		{"", "", "-h -o %R", "(NonZeroExitCode) (Priority) n01 n[01-02]"},
		{"", "", "-h -o %S", "2026-03-01T11:59:10 2026-03-01T13:00:00 2026-03-01T11:59:10 2026-03-01T10:57:57"},
		{"", "", "-h -o %m", "0 0 0 900G"},
		{"", "", "-h --noconvert -o %m", "0 0 0 921600M"},
		{"", "", "-h -j 12_5,12_7 -o %i", "12_[5,7%2] 14 11"},
		{"", "", "-h -O tres-alloc:80", "cpu=4,node=1,billing=4 cpu=4,node=1,billing=4 cpu=1,node=1,billing=1 cpu=256,mem=1800G,node=2,billing=256,gres/gpu:h100=16,gres/gpu=16"},
		{"", "", "-h -O exit_code", "768 0 9 0"},
	} {
		v := view()
		v.NoConvert = strings.Contains(c.args, "noconvert")
		got := strings.Join(strings.Fields(queueText(t, v, environ(c.name, c.value), strings.Fields(c.args)...)), " ")
		if got != c.want {
			t.Errorf("%s=%s squeue %s: %s, want %s", c.name, c.value, c.args, got, c.want)
		}
	}
}

// TestTimes: SLURM_TIME_FORMAT as squeue(1) has it.
func TestTimes(t *testing.T) {
	for _, c := range []struct{ format, want string }{
		{"", "2026-03-01T10:57:57"},
		{"standard", "2026-03-01T10:57:57"},
		{"relative", "10:57:57"},
		{"%a %T", "Sun 10:57:57"},
		{"%d.%m.%y %H:%M %% %q %s", "01.03.26 10:57 % %q 1772362677"},
	} {
		v := view()
		v.TimeFormat = c.format
		if got := strings.TrimSpace(queueText(t, v, nothing, "-h", "-n", "train", "-o", "%S", "-S", "i")); !strings.HasPrefix(got, c.want+"\n") {
			t.Errorf("%q: %s, want %s", c.format, got, c.want)
		}
	}
	for _, c := range []struct {
		ago  job.Duration
		want string
	}{
		{job.Hour, "11:00:00"},
		{job.Day, "Ystday 12:00"},
		{-job.Day, "Tomorr 12:00"},
		{-3 * job.Day, "Wed 12:00"},
		{10 * job.Day, "19 Feb 12:00"},
		{400 * job.Day, "25 Jan 2025"},
	} {
		v := view()
		v.TimeFormat = "relative"
		q, err := listing.ParseQueue([]string{"-h", "-o", "%V"}, nothing, people{})
		if err != nil {
			t.Fatal(err)
		}
		var w bytes.Buffer
		if err := q.Print(&w, v, []*api.Job{{Submit: noon.Add(-c.ago)}}); err != nil || strings.TrimSpace(w.String()) != c.want {
			t.Errorf("%d ago: %q, want %s", c.ago, w.String(), c.want)
		}
	}
}

// TestTaskLists: the lists of array tasks that Slurm 22.05 prints.
func TestTaskLists(t *testing.T) {
	for _, c := range []struct {
		array  string
		length int
		want   string
	}{
		{"0-9", 64, "0-9"},
		{"4", 64, "4"},
		{"1,3", 64, "1,3"},
		{"1-5:2", 64, "1,3,5"},
		{"1-11:2,12-13", 64, "1,3,5,7,9,11-13"},
		{"1-999:2", 64, "1-999:2"},
		{"0-200:3", 64, "0-198:3"},
		{"1,2,3-5", 64, "1-5"},
		{"1,2,4,8,16,32,64,70,80", 20, "1-2,4,8,16,32,64..."},
		{"1,2,4,8,16,32,64,70,80", 0, "1-2,4,8,16,32,64,70,80"},
	} {
		array, err := slurm.ParseArray(c.array)
		if err != nil {
			t.Fatal(err)
		}
		v := view()
		v.BitstrLen = c.length
		j := api.Job{ID: 7, Waiting: array.Tasks}
		if got := v.JobID(&j); got != "7_["+c.want+"]" {
			t.Errorf("%s: %s, want 7_[%s]", c.array, got, c.want)
		}
	}
}

// TestRefusals: what cannot be read is refused in Slurm's words, and what is not supported
// by name.
// TestEnded: jobs that have ended are shown to those who ask for them, not to those who
// only name them, as programs expect that wait until a job is gone.
func TestEnded(t *testing.T) {
	for args, want := range map[string]string{"-j 11,14": "11 ", "-j 11,14 -t all": "14 11 ", "-j 14": "", "-j 14 -t CA": "14 "} {
		q, err := listing.ParseQueue(append([]string{"-h", "-o", "%i "}, strings.Fields(args)...), nothing, people{})
		if err != nil {
			t.Fatal(err)
		}
		var answer []api.Job // as the controller has it
		for _, j := range jobs() {
			named := q.Query.IDs == nil || slices.Contains(q.Query.IDs, j.ID)
			if named && (len(q.Query.States) == 0 || slices.Contains(q.Query.States, j.State.String())) {
				answer = append(answer, j)
			}
		}
		var w strings.Builder
		if err := q.Print(&w, view(), q.Select(view(), answer)); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(w.String(), "\n", ""); got != want {
			t.Errorf("squeue %s: %q, want %q", args, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	queue := func(args []string) error { _, err := listing.ParseQueue(args, nothing, people{}); return err }
	info := func(args []string) error { _, err := listing.ParseInfo(args, nothing); return err }
	acct := func(args []string) error {
		_, err := listing.ParseAcct(args, nothing, people{}, false, time.UnixMilli(int64(noon)).UTC())
		return err
	}
	control := func(args []string) error { _, err := listing.ParseControl(args); return err }
	for _, c := range []struct {
		of   func([]string) error
		args string
		want string
	}{
		{queue, "-t foo", "error: Invalid job state specified: foo"},
		{queue, "-j abc", "error: Invalid job id: abc"},
		{queue, "-j 3_[x]", "slurm_load_jobs error: Invalid job id specified"},
		{queue, "-j 3.0", "slurm_load_jobs error: Invalid job id specified"},
		{queue, "-s 3.nonsense", "error: Invalid job_step id: 3.nonsense"},
		{queue, "-s x", "error: Invalid job_step id: x.??"},
		{queue, "-t all,foo", "error: Invalid job state specified: all"},
		{queue, "foo", "error: Unrecognized option: foo"},
		{queue, "-w n[", "error: Invalid node name n["},
		{queue, "--iterate x", "error: --iterate=x\n"},
		{queue, "--json", "error: option --json is not supported by Gangway"},
		{info, "-t foo", `error: Bad state string: "foo"`},
		{info, "-i 0", "error: Error: invalid entry for --iterate=0"},
		{info, "foo", "error: Unrecognized option: foo"},
		{acct, "-s foo", "fatal: unrecognized job state value 'foo'"},
		{acct, "-o foo", `error: Invalid field requested: "foo"`},
		{acct, "-j x", "fatal: Bad job/step specified: x"},
		{acct, "-S foo", "Invalid time specification (pos=0): foo"},
		{acct, "--units=Q", "error: Invalid unit type 'Q'. Possible options are 'KMGTP'"},
		{acct, "-u nobody-of-this-name", "error: Invalid user id: nobody-of-this-name"},
		{acct, "-g none", "error: Invalid group id: none"},
		{acct, "-j 5.x", "fatal: Bad step specified: 5"},
		{acct, "-k x", "fatal: Invalid time limit specification"},
		{acct, "-i 4-2", `error: Invalid numeric value "4-2" for requested node range.`},
		{acct, "-I x", `error: Invalid numeric value "x" for requested cpu range.`},
		{acct, "-f file", "error: option --file is not supported by Gangway"},
		{acct, "-S 2026-02-01 -E 2026-01-01", "error: Start time (2026-02-01T00:00:00) requested is after end time (2026-01-01T00:00:00)."},
		{control, "foo", "invalid keyword: foo"},
		{control, "show foo", "invalid entity:foo for keyword:show "},
		{control, "show", "too few arguments for keyword:show"},
		{control, "reboot n1", "error: scontrol reboot is not supported by Gangway"},
		{control, "show assoc", "error: scontrol show assoc_mgr is not supported by Gangway"},
		{control, "show burstbuffer", "error: scontrol show burstbuffer is not supported by Gangway"},
		{control, "show node n1 n2", "too many arguments for keyword:show"},
		{control, "top 5", "error: scontrol top is not supported by Gangway"},
		{control, "suspend 5", "error: scontrol suspend is not supported by Gangway"},
		{control, "create reservation nodes=n1", "error: scontrol create is not supported by Gangway"},
		{control, "hold", "too few arguments for keyword:hold"},
		{control, "wait_job", "too few arguments for keyword:wait_job"},
	} {
		err := c.of(strings.Fields(c.args))
		var refusal *slurm.Refusal
		if !errors.As(err, &refusal) || refusal.Lines[0] != c.want || refusal.Code == 0 {
			t.Errorf("%s: %v, want %s", c.args, err, c.want)
		}
	}
}

// TestControl: verbs and entities may be abbreviated and joined.
func TestControl(t *testing.T) {
	for _, c := range []struct{ args, verb, rest string }{
		{"show hostnames a,b", "hostnames", "a,b"},
		{"show hostname a", "hostnames", "a"},
		{"show hostnames=a[1-2]", "hostnames", "a[1-2]"},
		{"show hostlist a", "hostlist", "a"},
		{"show hostlistsorted a", "hostlistsorted", "a"},
		{"show j 5", "jobs", "5"},
		{"show job=5", "jobs", "5"},
		{"SHOW part", "partitions", ""},
		{"sho nodes n1", "nodes", "n1"},
		{"hold 5 6", "hold", "5 6"},
		{"-o -d show job", "jobs", ""},
		{"requeuehold 5", "requeuehold", "5"},
		{"rel 5", "release", "5"},
	} {
		got, err := listing.ParseControl(strings.Fields(c.args))
		if err != nil || got.Verb != c.verb || strings.Join(got.Args, " ") != c.rest {
			t.Errorf("scontrol %s: %+v, %v", c.args, got, err)
		}
	}
}

// golden compares text with a file; GANGWAY_UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("GANGWAY_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is now\n%s", file, got)
	}
}

// TestAcct: sacct has no referee here, because it needs a database; its output is compared
// with files.
func TestAcct(t *testing.T) {
	var all bytes.Buffer
	for _, args := range []string{
		"", "-b", "-X", "-n", "-P", "-p --delimiter ^", "-o JobID,JobIDRaw,JobName%-6,Elapsed,ElapsedRaw,CPUTime,CPUTimeRAW,AllocGRES,ReqGRES",
		"-X -P -o jobid,alloctres,reqtres,reqmem,ncpus,nnodes,nodelist,user,uid,group,exitcode,derivedexitcode",
		"-P -o jobid,maxrss,totalcpu,usercpu,systemcpu,avecpu,maxdiskread,ntasks", "-P -o jobid,start,end,submit,eligible,timelimit,timelimitraw,reserved",
		"-j 12_3", "-j 11.batch", "-j 12 --array", "-P -o jobid,state,workdir,container,reason,cluster --units=M",
	} {
		q, err := listing.ParseAcct(strings.Fields(args), nothing, people{}, true, time.UnixMilli(int64(noon)).UTC())
		if err != nil {
			t.Fatalf("sacct %s: %v", args, err)
		}
		v := view()
		v.Unit = q.Unit
		all.WriteString("$ sacct " + args + "\n")
		if err := q.Print(&all, v, past()); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "sacct.txt", all.String())
}

// TestAcctWindow: between which times jobs are looked for, as sacct(1) has it.
func TestAcctWindow(t *testing.T) {
	midnight := noon.Add(-12 * job.Hour)
	for _, c := range []struct {
		args         string
		since, until job.Time
		users        string
	}{
		{"", midnight, 0, "alice"},
		{"-a", midnight, 0, ""},
		{"-u bob", midnight, 0, "bob"},
		{"-j 5", 0, 0, ""},
		{"-s CD", noon, 0, "alice"},
		{"-s CD -S 2026-02-28", midnight.Add(-job.Day), 0, "alice"},
		{"-S now-1hour -E now", noon.Add(-job.Hour), noon, "alice"},
		{"-S 08:00", midnight.Add(8 * job.Hour), 0, "alice"},
		{"-S 18:00", midnight.Add(-6 * job.Hour), 0, "alice"},
	} {
		q, err := listing.ParseAcct(strings.Fields(c.args), nothing, people{}, false, time.UnixMilli(int64(noon)).UTC())
		if err != nil || q.Query.Since != c.since || q.Query.Until != c.until || strings.Join(q.Query.Users, ",") != c.users {
			t.Errorf("sacct %s: %v to %v of %v, %v", c.args, q.Query.Since, q.Query.Until, q.Query.Users, err)
		}
	}
}

// TestRecord: the record of a job that runs, with details.
func TestRecord(t *testing.T) {
	j := jobs()[0]
	j.Shares = []job.NodeShare{
		{Node: "n01", CPUs: 128, Memory: 900 << 10, Devices: []job.Devices{{Name: "gpu", Type: "h100", Mask: 0xff, Count: 8}}},
		{Node: "n02", CPUs: 128, Memory: 900 << 10, Devices: []job.Devices{{Name: "gpu", Type: "h100", Mask: 0xff, Count: 8}}},
	}
	j.Spec = &job.Spec{MinNodes: 2, MaxNodes: 2, TasksPerNode: 8, Licenses: []job.License{{Name: "matlab", Count: 2}}}
	var w bytes.Buffer
	for _, c := range []listing.Control{{Details: true}, {OneLine: true}} {
		if err := view().JobRecord(&w, &j, &c); err != nil {
			t.Fatal(err)
		}
	}
	s := listing.Step{Step: past()[0].Steps[0], Job: j}
	if err := view().StepRecord(&w, &s, &listing.Control{}); err != nil {
		t.Fatal(err)
	}
	cluster := api.Cluster{TreeWidth: 32, Name: "test", Version: "1.2.3", Began: noon, Licenses: []api.LicenseUse{{Name: "matlab", Total: 4, Used: 1}}, Network: job.Network{
		Switches: []job.Switch{{Name: "top", Switches: []string{"s1", "s2"}}, {Name: "s1", Nodes: []string{"n2", "n1"}}, {Name: "s2", Nodes: []string{"n3"}}},
	}}
	if err := view().Config(&w, &cluster); err != nil {
		t.Fatal(err)
	}
	for _, c := range []listing.Control{{}, {OneLine: true}, {Args: []string{"n3"}}, {Args: []string{"s1"}}} {
		if err := listing.Topology(&w, &cluster.Network, &c); err != nil {
			t.Fatal(err)
		}
		if err := listing.Licenses(&w, cluster.Licenses, &listing.Control{OneLine: c.OneLine}); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "record.txt", w.String())
}

func FuzzFormat(f *testing.F) {
	for _, format := range []string{"%.18i %.9P", "%all", "%", "%.", "%99999999i", "%é", "jobid:.18,name", ":", "%.0i%%", "all,jobid:x", "%!"} {
		f.Add(format, true)
		f.Add(format, false)
	}
	f.Fuzz(func(t *testing.T, format string, long bool) {
		option := "-o"
		if long {
			option = "-O"
		}
		q, err := listing.ParseQueue([]string{option, format}, nothing, people{})
		if err != nil {
			t.Fatal(err) // fields that there are not are warnings
		}
		if err := q.Print(io.Discard, view(), q.Select(view(), jobs())); err != nil {
			t.Fatal(err)
		}
		if i, err := listing.ParseInfo([]string{option, format}, nothing); err != nil {
			t.Fatal(err)
		} else if err := i.Print(io.Discard, view(), i.Rows(view(), nil, []api.Partition{{Partition: job.Partition{Name: "p"}}})); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBadSort: what squeue cannot sort by it tells behind its headings, the last one of several.
func TestBadSort(t *testing.T) {
	for sort, key := range map[string]string{"!": "!", "xyz": "y", "i,q": "q", "-A": "A", "i j": " "} {
		q, err := listing.ParseQueue([]string{"-o", "%i", "-S", sort}, nothing, people{})
		if err != nil {
			t.Fatal(err)
		}
		var w bytes.Buffer
		err = q.Print(&w, view(), q.Select(view(), jobs()))
		var refusal *slurm.Refusal
		if !errors.As(err, &refusal) || refusal.Lines[0] != "error: Invalid sort specification: "+key || w.String() != "JOBID\n" {
			t.Errorf("-S %s: %v, %q", sort, err, w.String())
		}
	}
	if q, err := listing.ParseQueue([]string{"-s", "-S", "q"}, nothing, people{}); err != nil || q.PrintSteps(&bytes.Buffer{}, view(), nil) != nil {
		t.Errorf("steps are not sorted by that, and nobody minds: %v", err)
	}
}

// TestAcctFilters: sacct's filters that are this package's let just those jobs through.
func TestAcctFilters(t *testing.T) {
	all := []api.Past{
		{Job: api.Job{ID: 1, GID: 7, QOS: "high", Limit: job.Hour, Nodes: 2, CPUs: 8, Constraint: "a&b", Reason: "TimeLimit"}},
		{Job: api.Job{ID: 2, GID: 8, QOS: "low", Nodes: 4, CPUs: 64, Constraint: "[b|c]"}},
	}
	for args, want := range map[string]string{
		"":              "1 2",
		"-g team":       "1",
		"-q low":        "2",
		"-q low,high":   "1 2",
		"-R TimeLimit":  "1",
		"-R None":       "2",
		"-C b":          "1 2",
		"-C c,x":        "2",
		"-k 60":         "1",
		"-k 30":         "",
		"-k 30 -K 90":   "1",
		"-K UNLIMITED":  "1 2",
		"-k UNLIMITED":  "2",
		"-i 2":          "1",
		"-i 2-4":        "1 2",
		"-I 10-100":     "2",
		"-i 2-4 -I 1-8": "1",
	} {
		q, err := listing.ParseAcct(strings.Fields("-n -P -X -a -o jobid "+args), nothing, people{}, true, time.UnixMilli(int64(noon)).UTC())
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		var w bytes.Buffer
		if err := q.Print(&w, view(), all); err != nil {
			t.Error(err)
		}
		if got := strings.Join(strings.Fields(w.String()), " "); got != want {
			t.Errorf("sacct %s has %q, want %q", args, got, want)
		}
	}
}
