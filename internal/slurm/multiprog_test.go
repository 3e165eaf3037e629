package slurm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// TestMultiProg: what tasks run, by files that srun 22.05 was given, each word in brackets.
func TestMultiProg(t *testing.T) {
	const text = "# what there is\n" +
		`0 ./pa.sh "c d" e\ f 'g h'i %t%o %% %x a\'b \n x` + "\n" +
		`1,3-4 ./pa.sh %o of %t '%t' "%o" "" '' end   ` + "\n\n" +
		"  2   ./pa.sh a\ttab b\\\nc \\\nd # no comment\r\n" +
		"5-6,7 ./pa.sh 'its' x#y\n"
	m, err := slurm.ParseMultiProg([]byte(text), "f", 8)
	if err != nil || m.Tasks() != 8 {
		t.Fatal(m, err)
	}
	for task, want := range []string{
		`["c][d"][e f][g hi][00][][][a'b][n][x]`, `[0][of][1][%t]["0"][""][][end]`, `[a][tab][bc][d][#][no][comment]`, `[1][of][3][%t]["1"][""][][end]`,
		`[2][of][4][%t]["2"][""][][end]`, `[its][x#y]`, `[its][x#y]`, `[its][x#y]`,
	} {
		args := m.Args(task)
		if got := "[" + strings.Join(args[1:], "][") + "]"; got != want || args[0] != "./pa.sh" {
			t.Errorf("task %d runs %q %s, want %s", task, args[0], got, want)
		}
	}
	if m.Args(8) != nil {
		t.Errorf("task 8 runs %q", m.Args(8))
	}
}

// TestMultiProgRest: what * stands for, and how many tasks there are where nobody says it.
func TestMultiProgRest(t *testing.T) {
	for text, want := range map[string]string{
		"* echo %t %o":          "1 [[echo 0 0]]",
		"0 a\n* b %t:%o":        "1 [[a]]",
		"2 a\n* b %t:%o":        "3 [[b 0:0] [b 1:1] [a]]",
		"0-1 a %o\\\n":          "2 [[a 0] [a 1]]",
		"0,,1 a\n":              "2 [[a] [a]]",
		"1 a\n0 b '100%'\n":     "2 [[b 100%] [a]]",
		"0 a 50% \\%t \\\\ x\\": "1 [[a 50% %t \\ x\\]]",
	} {
		m, err := slurm.ParseMultiProg([]byte(text), "f", 0)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var all [][]string
		for task := range m.Tasks() {
			all = append(all, m.Args(task))
		}
		if got := fmt.Sprint(m.Tasks(), " ", all); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestBadMultiProg: as srun refuses them, but for a quote that is open and a range without an end,
// of which it says nothing.
func TestBadMultiProg(t *testing.T) {
	for _, test := range []struct {
		text  string
		tasks int
		want  string
	}{
		{"0 a\n0-3 b\n", 4, "error: Duplicate record for task 0|error: Line 2 of configuration file f invalid"},
		{"0 a\n", 4, "error: Configuration file f invalid, no record for task id 1"},
		{"", 0, "error: Configuration file f invalid, no record for task id 0"},
		{"\n1-9 b\n", 4, "error: Invalid task id, 9 >= ntasks|error: Line 2 of configuration file f invalid"},
		{"[0-1] a\n", 2, "error: Invalid task range specification ([0-1])|error: Line 1 of configuration file f invalid"},
		{"1-0 a\n", 2, "error: Invalid task range, 1-0|error: Line 1 of configuration file f invalid"},
		{"* a\n0 b\n", 2, "error: Task range specification with asterisk must be last|error: Line 2 of configuration file f invalid"},
		{"0-1\n", 2, "error: No program for tasks 0-1|error: Line 1 of configuration file f invalid"},
		{"0 a 'b\n1 c\n", 2, "error: A single quote is not closed|error: Line 1 of configuration file f invalid"},
		{"0- a\n", 1, "error: Invalid task range specification (0-)|error: Line 1 of configuration file f invalid"},
		{"0-99999999999 a\n", 1, "error: Invalid task range specification (0-99999999999)|error: Line 1 of configuration file f invalid"},
		{"0-4294967295 a\n", 0, "error: Invalid task range specification (0-4294967295)|error: Line 1 of configuration file f invalid"},
		{"0 a\x00b\n", 1, "error: Configuration file f has a byte 0 in it"},
		{strings.Repeat("#", 1<<20+1), 1, "error: Configuration file f is 1048577 bytes long; the most is 1048576"},
	} {
		_, err := slurm.ParseMultiProg([]byte(test.text), "f", test.tasks)
		var r *slurm.Refusal
		if !errors.As(err, &r) || strings.Join(r.Lines, "|") != test.want || r.Code != 1 {
			t.Errorf("%.20q: %v, want %s", test.text, err, test.want)
		}
	}
}

// FuzzMultiProg: nothing makes it fail otherwise than by a refusal.
func FuzzMultiProg(f *testing.F) {
	f.Add([]byte("0-1 a 'b %t' %o\\\n c\n* d"), 4)
	f.Add([]byte("0,2-3 a\\"), 0)
	f.Fuzz(func(t *testing.T, text []byte, tasks int) {
		if tasks < 0 || tasks > 100 {
			return
		}
		m, err := slurm.ParseMultiProg(text, "f", tasks)
		if err != nil {
			var r *slurm.Refusal
			if !errors.As(err, &r) {
				t.Fatal(err)
			}
			return
		}
		for task := range max(1, tasks) {
			if len(m.Args(task)) == 0 {
				t.Fatalf("task %d runs nothing", task)
			}
		}
	})
}
