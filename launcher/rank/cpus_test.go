package rank_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// machine has two sockets of four cores of two threads: as the kernel numbers them, first one
// thread of all cores, then the others. Each socket is a NUMA domain.
func machine() []rank.CPU {
	all := make([]rank.CPU, 16)
	for i := range all {
		socket := i % 8 / 4
		all[i] = rank.CPU{ID: i, Core: i % 4, Socket: socket, Domain: socket}
	}
	return all
}

// TestBind: what --cpu-bind makes of tasks on a machine; a part of an error begins with "!",
// that of a note with "?".
func TestBind(t *testing.T) {
	near := [][]int{{0, 1, 2, 3}, {4, 5, 6, 7, 99}, {0, 1}}
	for _, test := range []struct {
		kind    string
		tasks   int
		perTask int
		sockets string
		own     bool
		want    string
	}{
		{"", 3, 0, "", true, "[]"},
		{"none", 3, 0, "", true, "[]"},
		{"quiet", 3, 0, "", true, "[]"},
		{"map_cpu:3,1", 3, 0, "", false, "[[3] [1] [3]]"},
		{"map_cpu:0x2*2,5", 3, 0, "", false, "[[2] [2] [5]]"},
		{"map_cpu:19", 3, 0, "", false, "!19: none of these"},
		{"map_cpu:", 3, 0, "", false, "!is no number"},
		{"map_cpu:1*0", 3, 0, "", false, "!is no entry"},
		{"map_cpu:99999999", 3, 0, "", false, "!is no number"},
		{"mask_cpu:0x3,C,0xF0", 3, 0, "", false, "[[0 1] [2 3] [4 5 6 7]]"},
		{"verbose,mask_cpu:0x10003", 2, 0, "", false, "[[0 1] [0 1]]"},
		{"mask_cpu:0", 3, 0, "", false, "!is no mask"},
		{"mask_cpu:zz", 3, 0, "", false, "!is no mask"},
		{"rank", 3, 0, "", false, "[[0] [1] [2]]"},
		{"rank_ldom", 3, 0, "", false, "[[0 1 2 3 8 9 10 11] [4 5 6 7 12 13 14 15] [0 1 2 3 8 9 10 11]]"},
		{"map_ldom:1", 1, 0, "", false, "[[4 5 6 7 12 13 14 15]]"},
		{"mask_ldom:3", 1, 0, "", false, "[[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]]"},
		{"map_ldom:2", 1, 0, "", false, "!2: none of these"},
		{"cores", 3, 2, "", true, "[[0 8] [4 12] [1 9]]"},
		{"cores", 3, 2, "block", true, "[[0 8] [1 9] [2 10]]"},
		{"cores", 3, 2, "fcyclic", true, "[[0 4 8 12] [0 4 8 12] [1 5 9 13]]"},
		{"cores", 2, 1, "", true, "[[0 8] [4 12]]"}, // the whole core
		{"threads", 2, 1, "", true, "[[0] [4]]"},
		{"one_thread", 2, 4, "", true, "[[0 1] [4 5]]"},
		{"threads", 4, 0, "", true, "[[0 1 8 9] [4 5 12 13] [2 3 10 11] [6 7 14 15]]"}, // all that there are
		{"sockets", 2, 1, "", true, "[[0 1 2 3 8 9 10 11] [4 5 6 7 12 13 14 15]]"},
		{"ldoms", 2, 1, "block", true, "[[0 1 2 3 8 9 10 11] [0 1 2 3 8 9 10 11]]"},
		{"v,threads", 2, 9, "", true, "[[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]]"}, // more than there are
		{"cores", 3, 2, "", false, "?tasks are not bound"},
		{"closest", 2, 0, "", false, "[[0 1 2 3] [4 5 6 7]]"},
		{"closest", 4, 0, "", false, "?no GPUs"},
		{"boards", 1, 0, "", true, "!is not known"},
	} {
		r := rank.BindRequest{Kind: test.kind, Tasks: test.tasks, PerTask: test.perTask, Sockets: test.sockets, May: machine(), Near: near}
		if test.own {
			r.Own = machine()
		}
		b, err := rank.Bind(r)
		got := fmt.Sprint(b.CPUs)
		ok := got == test.want && err == nil && b.Note == ""
		if text, is := strings.CutPrefix(test.want, "!"); is {
			ok = err != nil && strings.Contains(err.Error(), text)
		} else if text, is := strings.CutPrefix(test.want, "?"); is {
			ok = err == nil && b.CPUs == nil && strings.Contains(b.Note, text)
		}
		if !ok {
			t.Errorf("%d x %d, %s %q: %s %q %v, want %s", test.tasks, test.perTask, test.kind, test.sockets, got, b.Note, err, test.want)
		}
	}
}

// TestBindDealsOnce: threads of tasks do not overlap as long as there are enough, and each task
// has as many as were asked for, of as few sockets as do where that is possible.
func TestBindDealsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks, per := rapid.IntRange(1, 8).Draw(t, "tasks"), rapid.IntRange(1, 8).Draw(t, "each")
		sockets := rapid.SampledFrom([]string{"", "block", "cyclic", "fcyclic"}).Draw(t, "sockets")
		b, err := rank.Bind(rank.BindRequest{Kind: "threads", Tasks: tasks, PerTask: per, Sockets: sockets, May: machine(), Own: machine()})
		if err != nil || len(b.CPUs) != tasks {
			t.Fatal(b, err)
		}
		seen := map[int]bool{}
		for _, cpus := range b.CPUs {
			if tasks*per > 16 {
				if len(cpus) != 16 {
					t.Fatalf("%v: too few for all, and yet dealt", b.CPUs)
				}
				continue
			}
			if len(cpus) != per {
				t.Fatalf("%v: a task has not %d", b.CPUs, per)
			}
			for _, cpu := range cpus {
				if seen[cpu] {
					t.Fatalf("%v: CPU %d is of two tasks", b.CPUs, cpu)
				}
				seen[cpu] = true
			}
		}
	})
}

// TestChoose: a job's CPUs are of others' no more, of one socket and of whole cores if they can be.
func TestChoose(t *testing.T) {
	for _, test := range []struct {
		taken []int
		want  int
		cpus  string
	}{
		{nil, 4, "[0 1 8 9]"},
		{[]int{0}, 4, "[4 5 12 13]"}, // the other socket has more left
		{[]int{0, 4}, 12, "[1 2 3 5 6 7 9 10 11 13 14 15]"},
		{[]int{0, 4}, 13, "[1 2 3 5 6 7 8 9 10 11 13 14 15]"},
		{[]int{0, 4}, 15, "[]"},
		{nil, 0, "[]"},
	} {
		if got := fmt.Sprint(rank.Choose(machine(), test.taken, test.want)); got != test.cpus {
			t.Errorf("%d without %v: %s, want %s", test.want, test.taken, got, test.cpus)
		}
	}
}

// TestBindWords: what is told of a binding, in the words of Slurm 22.05 with task/affinity.
func TestBindWords(t *testing.T) {
	for kind, want := range map[string]string{
		"v,rank":                   "verbose,rank|rank||cpu-bind=RANK - n1, task  5  1 [77]: mask 0x2 set",
		"verbose,map_cpu:1,0":      "verbose,map_cpu:1,0|map_cpu:|1,0|cpu-bind=MAP  - n1, task  5  1 [77]: mask 0x1 set",
		"verbose,mask_cpu:0x2,0x3": "verbose,mask_cpu:2,3|mask_cpu:|2,3|cpu-bind=MASK - n1, task  5  1 [77]: mask 0x3 set",
		"verbose,none":             "verbose,none|none||cpu-bind=NONE - n1, task  5  1 [77]: mask 0x0",
		"v,threads":                "verbose,mask_cpu:0x1,0x2|mask_cpu:|0x1,0x2|cpu-bind=MASK - n1, task  5  1 [77]: mask 0x2 set",
		"v,rank_ldom":              "verbose,rank_ldom|rank_ldom||cpu-bind=LDRANK - n1, task  5  1 [77]: mask 0x3 set",
		"v,map_ldom:0":             "verbose,map_ldom:0|map_ldom:|0|cpu-bind=LDMAP  - n1, task  5  1 [77]: mask 0x3 set",
		"v,mask_ldom:0x1":          "verbose,mask_ldom:1|mask_ldom:|1|cpu-bind=LDMASK - n1, task  5  1 [77]: mask 0x3 set",
		"sockets":                  "quiet,mask_cpu:0x3,0x3|mask_cpu:|0x3,0x3|",
	} {
		two := []rank.CPU{{ID: 0}, {ID: 1, Core: 1}}
		b, err := rank.Bind(rank.BindRequest{Kind: kind, Tasks: 2, May: two, Own: two})
		if err != nil {
			t.Fatal(err)
		}
		s := &job.StepSpec{Tasks: 2, Nodes: []job.StepNode{{Name: "n1", Ranks: []int{0, 1}}}}
		env, err := rank.New(rank.Options{Spec: s, Binding: b})
		if err != nil {
			t.Fatal(err)
		}
		all, err := env.Rank(0)
		if err != nil {
			t.Fatal(err)
		}
		value := func(name string) string {
			at := slices.IndexFunc(all, func(v string) bool { return strings.HasPrefix(v, name+"=") })
			return strings.TrimPrefix(all[at], name+"=")
		}
		got := strings.Join([]string{value("SLURM_CPU_BIND"), value("SLURM_CPU_BIND_TYPE"), value("SLURM_CPU_BIND_LIST"), strings.TrimSuffix(b.Line("n1", 5, 1, 77), "\n")}, "|")
		if got != want {
			t.Errorf("%s:\n%s, want\n%s", kind, got, want)
		}
	}
}
