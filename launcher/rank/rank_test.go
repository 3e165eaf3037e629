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

// naive deals ranks as people would do by hand: node after node, card after card.
func naive(counts []int, at int) [][]int {
	all := make([][]int, len(counts))
	left := slices.Clone(counts)
	next := 0
	for slices.Max(left) > 0 {
		for node := range left {
			for k := 0; k < at && left[node] > 0; k++ {
				all[node] = append(all[node], next)
				left[node]--
				next++
			}
		}
	}
	return all
}

// TestDeal: as dealt by hand, and every rank has one place.
func TestDeal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 12).Draw(t, "counts")
		plane := rapid.IntRange(1, 5).Draw(t, "plane")
		for text, at := range map[string]int{"block": 1 << 20, "cyclic": 1, fmt.Sprintf("plane=%d", plane): plane} {
			d, err := rank.ParseDistribution(text)
			if err != nil || d.String() != text {
				t.Fatalf("%s: %v, %v", text, d, err)
			}
			got, err := rank.Deal(counts, d)
			if err != nil {
				t.Fatal(err)
			}
			want := naive(counts, at)
			for i := range counts {
				if !slices.Equal(got[i], want[i]) {
					t.Fatalf("%s of %v: node %d has %v, want %v", text, counts, i, got[i], want[i])
				}
			}
		}
	})
}

// TestCounts: all tasks have a place, no node has more than it has room for while another
// has room, and no two nodes with room differ by more than one round.
func TestCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.SliceOfN(rapid.IntRange(0, 8), 1, 10).Draw(t, "room")
		tasks := rapid.IntRange(0, 60).Draw(t, "tasks")
		plane := rapid.IntRange(1, 4).Draw(t, "plane")
		d := rapid.SampledFrom([]rank.Distribution{{}, {Kind: rank.Cyclic}, {Kind: rank.Plane, Plane: plane}}).Draw(t, "distribution")
		at := 1
		if d.Kind == rank.Plane {
			at = plane
		}
		got, err := rank.Counts(tasks, room, d)
		if err != nil {
			t.Fatal(err)
		}
		sum, all := 0, 0
		for i := range room {
			sum += got[i]
			all += room[i]
		}
		if sum != tasks {
			t.Fatalf("%d tasks of %d: %v", sum, tasks, got)
		}
		for i := range room {
			if tasks <= all && got[i] > room[i] {
				t.Fatalf("%v is more than %v", got, room)
			}
			for j := range room {
				if got[j] < room[j] && got[i] > got[j]+at && tasks <= all {
					t.Fatalf("%v with room %v: node %d has more than its turn", got, room, i)
				}
			}
		}
	})
}

// TestSlurmLayouts: what Slurm 22.05 does (src/slurmctld/step_mgr.c, slurm_step_layout.c).
func TestSlurmLayouts(t *testing.T) {
	for _, test := range []struct {
		tasks int
		room  []int
		dist  string
		want  string
	}{
		{4, []int{2, 2}, "block", "[[0 1] [2 3]]"},
		{4, []int{2, 2}, "cyclic", "[[0 2] [1 3]]"},
		{3, []int{4, 4}, "block", "[[0 1] [2]]"},
		{5, []int{4, 1, 4}, "block", "[[0 1] [2] [3 4]]"},
		{5, []int{4, 1, 4}, "cyclic", "[[0 3] [1] [2 4]]"},
		{8, []int{8, 8}, "plane=3", "[[0 1 2 6 7] [3 4 5]]"},
		{6, []int{2, 2}, "block", "[[0 1 2] [3 4 5]]"}, // more than there is room for
		{4, []int{2, 2}, "cyclic:block", "[[0 2] [1 3]]"},
		{6, []int{4, 4, 4, 4}, "plane=2", "[[0 1] [2 3] [4] [5]]"},
		{6, []int{4, 4, 4, 4}, "plane=4", "[[0 1 2] [3] [4] [5]]"},
		{3, []int{4, 4, 4, 4}, "plane=4", "[[0] [1] [2] []]"},
		{6, []int{4, 4}, "block,Pack", "[[0 1 2 3] [4 5]]"},
		{6, []int{4, 4}, "cyclic,Pack", "[[0 2 4] [1 3 5]]"},
		{6, []int{4, 4}, "NoPack", "[[0 1 2] [3 4 5]]"},
	} {
		d, err := rank.ParseDistribution(test.dist)
		if err != nil {
			t.Fatal(err)
		}
		counts, err := rank.Counts(test.tasks, test.room, d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := rank.Deal(counts, d)
		if err != nil || fmt.Sprint(got) != test.want {
			t.Errorf("%d tasks, %v, %s: %v, %v, want %s", test.tasks, test.room, test.dist, got, err, test.want)
		}
	}
	got, err := rank.DealList([]string{"a", "b", "c"}, []string{"b", "a", "b"})
	if err != nil || fmt.Sprint(got) != "[[1] [0 2] []]" {
		t.Errorf("arbitrary: %v, %v", got, err)
	}
}

// TestDistributionText: as Slurm writes it.
func TestDistributionText(t *testing.T) {
	for text, want := range map[string]string{
		"": "block", "*": "block", "CYCLIC": "cyclic", "block:cyclic": "block:cyclic", "cyclic:fcyclic:block": "cyclic:fcyclic:block", "*:*:cyclic": "block:*:cyclic",
		"pack": "block,pack", "block,Pack": "block,pack", "block:block,nopack": "block:block", "plane=3": "plane=3", "arbitrary": "arbitrary",
	} {
		if d, err := rank.ParseDistribution(text); err != nil || d.String() != want {
			t.Errorf("%q is %q (%v), want %q", text, d, err, want)
		}
	}
}

// TestBadLayouts are refused.
func TestBadLayouts(t *testing.T) {
	if _, err := rank.DealList([]string{"a"}, []string{"b"}); err == nil || !strings.Contains(err.Error(), "host b") {
		t.Errorf("a host that is not there: %v", err)
	}
	for _, text := range []string{"plane", "plane=0", "plane=x", "plane=99999999999", "round", "block2", "block:round", "block:block:plane=2"} {
		if d, err := rank.ParseDistribution(text); err == nil {
			t.Errorf("%s is %v", text, d)
		}
	}
	if _, err := rank.Deal([]int{1 << 24, 1}, rank.Distribution{}); err == nil {
		t.Error("too many ranks")
	}
	if _, err := rank.Deal([]int{-1, 1}, rank.Distribution{}); err == nil {
		t.Error("a negative number of ranks")
	}
	if _, err := rank.Counts(-1, []int{1}, rank.Distribution{}); err == nil {
		t.Error("a negative number of tasks")
	}
	if _, err := rank.Counts(1, nil, rank.Distribution{}); err == nil {
		t.Error("no nodes")
	}
	if _, err := rank.Deal([]int{1}, rank.Distribution{Kind: rank.Arbitrary}); err == nil {
		t.Error("arbitrary, without a list")
	}
}

func TestRunLength(t *testing.T) {
	for want, counts := range map[string][]int{"": nil, "8": {8}, "8(x4)": {8, 8, 8, 8}, "72(x2),36": {72, 72, 36}, "2,1,2(x2)": {2, 1, 2, 2}} {
		if got := rank.RunLength(counts); got != want {
			t.Errorf("%v: %s, want %s", counts, got, want)
		}
	}
}

// TestNames: the signs of slurm's man pages, sbatch(1) "filename pattern" and srun(1).
func TestNames(t *testing.T) {
	n := rank.Names{Job: 128, Step: 3, JobName: "train", User: "ann", Node: "gpu01.example", NodeID: 2, Rank: 11, Restarts: 1}
	a := n
	a.Array = &job.ArrayFacts{Job: 100, Task: 27}
	b := n
	b.Step = job.BatchStep
	for _, test := range []struct {
		n        rank.Names
		in, want string
	}{
		{n, "slurm-%j.out", "slurm-128.out"},
		{n, "%J", "128.3"},
		{b, "%J %s", "128 batch"},
		{n, "job%j-%2t.out", "job128-11.out"},
		{n, "%4n-%05t-%010j", "0002-00011-0000000128"},
		{n, "%99j", "0000000128"},
		{n, "%N %n %r %s %t %u %x", "gpu01 2 1 3 11 ann train"},
		{n, "100%%", "100%"},
		{n, "%", "%"},
		{n, "a%5", "a%5"},
		{n, "%q %5Q", "%q %5Q"},
		{n, `%j\%j`, "%j%j"},
		{n, `back\\slash`, "backslash"},
		{a, "slurm-%A_%a.out", "slurm-100_27.out"},
		{a, "%4a %b %j", "0027 7 128"},
		{n, "%A_%a", "128_4294967294"},
		{n, "plain", "plain"},
	} {
		if got := test.n.Expand(test.in); got != test.want {
			t.Errorf("%s: %s, want %s", test.in, got, test.want)
		}
	}
}

func FuzzNames(f *testing.F) {
	f.Add("%A_%a-%5t%%")
	f.Add("%99999999999999999999j")
	f.Fuzz(func(t *testing.T, in string) {
		out := rank.Names{Job: 1}.Expand(in)
		if len(out) > 20*len(in)+20 {
			t.Errorf("%q became %d bytes", in, len(out))
		}
	})
}
