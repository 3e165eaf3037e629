package listing_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
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
			Start: noon - 50000, End: noon - 40000, Nodes: 1, Tasks: 1, CPUs: 1, NodeList: []string{"n01"}, Signal: 9,
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
func TestRefusals(t *testing.T) {
	queue := func(args []string) error { _, err := listing.ParseQueue(args, nothing, people{}); return err }
	info := func(args []string) error { _, err := listing.ParseInfo(args, nothing); return err }
	acct := func(args []string) error {
		_, err := listing.ParseAcct(args, nothing, people{}, false, time.UnixMilli(int64(noon)).UTC())
		return err
	}
	control := func(args []string) error { _, err := listing.ParseControl(args); return err }
	update := func(args []string) error {
		_, err := listing.ParseUpdate(args, time.UnixMilli(int64(noon)).UTC())
		return err
	}
	for _, c := range []struct {
		of   func([]string) error
		args string
		want string
	}{
		{queue, "-t foo", "error: Invalid job state specified: foo"},
		{queue, "-j abc", "error: Invalid job id: abc"},
		{queue, "-j 3_[x]", "error: Invalid job id: 3_[x]"},
		{queue, "-s 3.nonsense", "error: Invalid job_step id: 3.nonsense"},
		{queue, "foo", "error: Unrecognized option: foo"},
		{queue, "-S !", "error: Invalid sort specification: !"},
		{queue, "-w n[", "error: Invalid node name n["},
		{queue, "--iterate 5", "error: option --iterate is not supported by Gangway"},
		{queue, "--json", "error: option --json is not supported by Gangway"},
		{queue, "-M all", "error: option --clusters is not supported by Gangway"},
		{info, "-t foo", `error: Bad state string: "foo"`},
		{info, "-i 5", "error: option --iterate is not supported by Gangway"},
		{info, "foo", "error: Unrecognized option: foo"},
		{acct, "-s foo", "fatal: unrecognized job state value 'foo'"},
		{acct, "-o foo", `error: Invalid field requested: "foo"`},
		{acct, "-j x", "fatal: Bad job/step specified: x"},
		{acct, "-S foo", "Invalid time specification (pos=0): foo"},
		{acct, "--units=Q", "fatal: Invalid unit type Q"},
		{acct, "-f file", "error: option --file is not supported by Gangway"},
		{acct, "-S 2026-02-01 -E 2026-01-01", "fatal: Start time (2026-02-01) requested is after end time (2026-01-01)."},
		{control, "foo", "invalid keyword: foo"},
		{control, "show foo", "invalid entity:foo for keyword:show "},
		{control, "show", "too few arguments for keyword:show"},
		{control, "reboot n1", "error: scontrol reboot is not supported by Gangway"},
		{update, "foo=bar", "No valid entity in update command"},
		{update, "jobid=5 foo=bar", "Update of this parameter is not supported: foo=bar"},
		{update, "jobid=5 timelimit=x", "Invalid input: timelimit=x"},
		{update, "jobid=5 nodes", "Update of this parameter is not supported: nodes"},
		{update, "nodename=n1 state=drain", "You must specify a reason when DOWNING or DRAINING a node. Request denied"},
		{update, "nodename=n1 state=foo", "Invalid input: state=foo"},
		{update, "partitionname=p state=foo", "Invalid input: state=foo"},
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
		{"sh nodes n1", "nodes", "n1"},
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

func TestUpdate(t *testing.T) {
	words := "JobId=5,6 TimeLimit=+10 Nice=-3 Partition=a,b NumNodes=2-4 MinMemoryNode=2G Gres=gpu:h100:2 StartTime=now+1hour ReqNodeList=n[1-2] ArrayTaskThrottle=9 Requeue=1 Priority=77 Name=x"
	u, err := listing.ParseUpdate(strings.Fields(words), time.UnixMilli(int64(noon)).UTC())
	if err != nil {
		t.Fatal(err)
	}
	s := job.Spec{TimeLimit: job.Hour, Array: &job.Array{Tasks: []job.Range{{First: 1, Last: 3, Step: 1}}}}
	array := s.Array
	for _, set := range u.Specs {
		if err := set(&s); err != nil {
			t.Error(err)
		}
	}
	if s.TimeLimit != 70*job.Minute || s.Nice != -3 || strings.Join(s.Partitions, " ") != "a b" || s.MinNodes != 2 || s.MaxNodes != 4 ||
		s.Memory != (job.Memory{MiB: 2048, Per: job.PerNode}) || s.GRES[0] != (job.GRESRequest{Name: "gpu", Type: "h100", Count: 2, Per: job.PerNode}) ||
		s.Begin != noon.Add(job.Hour) || strings.Join(s.NodeList, " ") != "n1 n2" || s.Array.Throttle != 9 || !s.Requeue || *s.Priority != 77 || s.Name != "x" {
		t.Errorf("%+v", s)
	}
	if array.Throttle != 0 {
		t.Error("the array of the job before was changed")
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
	if err := view().Config(&w, &api.Ping{Cluster: "test", Version: "1.2.3"}); err != nil {
		t.Fatal(err)
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
