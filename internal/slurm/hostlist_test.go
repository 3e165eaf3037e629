package slurm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// hostlists are what a list expands to; empty: it is refused. All but those marked are as
// "scontrol show hostnames" of Slurm 22.05 has them.
var hostlists = []struct {
	list, names string
	ours        bool // we take more than Slurm
}{
	{"n[001-003,130]", "n001 n002 n003 n130", false},
	{"n1", "n1", false},
	{"a,,b", "a b", false},
	{"a b", "a b", false},
	{"n[1,3,2]", "n1 n3 n2", false},
	{"n[01-3]", "n01 n02 n03", false},
	{"n[1-03]", "n1 n2 n3", false},
	{"n[9-11]", "n9 n10 n11", false},
	{"n[099-101]", "n099 n100 n101", false},
	{"[1-3]", "1 2 3", false},
	{"n[1-1]", "n1", false},
	{"n[1-2]x[3-4]", "n1x3 n1x4 n2x3 n2x4", false},
	{"n[1-2][3-4]", "n13 n14 n23 n24", false},
	{"a[1-2],b[3,5],c", "a1 a2 b3 b5 c", false},
	{"n[1-2]-ib", "n1-ib n2-ib", true},
	{"r[1-2]c[1-2]n[1-2]", "r1c1n1 r1c1n2 r1c2n1 r1c2n2 r2c1n1 r2c1n2 r2c2n1 r2c2n2", true}, // Slurm counts the middle slowest
	{"n[2-1]", "", false},
	{"n[]", "", false},
	{"n[1-2,]", "", false},
	{"n[,1]", "", false},
	{"n[a-b]", "", false},
	{"n[-1]", "", false},
	{"n[1--2]", "", false},
	{"n[1.5]", "", false},
	{"n[[1-2]]", "", false},
	{"n[1-70000]", "", false},
	{"n[0-18446744073709551615]", "", false},
	{"n[1-9999999999999999999999]", "", false},
	{"n[1", "", true}, // Slurm makes "n]" of it
	{"n1]", "", true},
	{"n[1 - 2]", "", true}, // Slurm makes n01 n02 of it
	{"a[1-60000]b[1-60000]", "", true},
}

func TestExpand(t *testing.T) {
	for _, c := range hostlists {
		names, err := slurm.Expand(c.list)
		if got := strings.Join(names, " "); got != c.names || (err == nil) != (c.names != "") {
			t.Errorf("Expand(%q) = %q, %v; want %q", c.list, got, err, c.names)
		}
		if err != nil && !strings.Contains(err.Error(), "want ") {
			t.Errorf("Expand(%q): %v: does not say what is valid", c.list, err)
		}
	}
	if names, err := slurm.Expand(""); len(names) > 0 || err != nil {
		t.Errorf("Expand of nothing = %q, %v", names, err)
	}
}

// folds are as "scontrol show hostlist" and "... hostlistsorted" of Slurm 22.05 have them.
var folds = [][3]string{ // names, in order, sorted
	{"n1,n3,n2", "n[1,3,2]", "n[1-3]"},
	{"n1,n1,n2", "n[1,1-2]", "n[1,1-2]"},
	{"n9,n10,n11", "n[9-11]", "n[9-11]"},
	{"n09,n10", "n[09-10]", "n[09-10]"},
	{"n009,n10", "n[009,10]", "n[10,009]"},
	{"n099,n100", "n[099-100]", "n[099-100]"},
	{"n1,n2,m3,n3", "n[1-2],m3,n3", "m3,n[1-3]"},
	{"rack1_b1,rack1_b2,rack2_b1,rack2_b2", "rack1_b[1-2],rack2_b[1-2]", "rack1_b[1-2],rack2_b[1-2]"},
	{"n1-ib,n2-ib", "n1-ib,n2-ib", "n1-ib,n2-ib"},
	{"a,b,c", "a,b,c", "a,b,c"},
	{"n1,n01,n001", "n[1,01,001]", "n[1,01,001]"},
	{"n8,n9,n10,n100,n101", "n[8-10,100-101]", "n[8-10,100-101]"},
	{"1,2,3", "[1-3]", "[1-3]"},
	{"n10,n9,n1", "n[10,9,1]", "n[1,9-10]"},
	{"n1,n10,n2,n02", "n[1,10,2,02]", "n[1-2,02,10]"},
	{"b2,a1,n3", "b2,a1,n3", "a1,b2,n3"},
	{"n1", "n1", "n1"},
}

func TestFold(t *testing.T) {
	for _, c := range folds {
		names := strings.Split(c[0], ",")
		if got := slurm.Fold(names); got != c[1] {
			t.Errorf("Fold(%s) = %s, want %s", c[0], got, c[1])
		}
		slurm.SortHosts(names)
		if got := slurm.Fold(names); got != c[2] {
			t.Errorf("Fold(%s) sorted = %s, want %s", c[0], got, c[2])
		}
	}
	if got := slurm.Fold(nil); got != "" {
		t.Errorf("Fold(nil) = %q", got)
	}
}

// TestFoldExpand: what Fold writes expands to the same names again.
func TestFoldExpand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOf(rapid.StringMatching(`[a-c]?(-x)?[0-9]{0,4}[a-b]?[0-9]{0,20}`)).Draw(t, "names")
		names = slices.DeleteFunc(names, func(s string) bool { return s == "" })
		folded := slurm.Fold(names)
		back, err := slurm.Expand(folded)
		if err != nil || !slices.Equal(back, names) {
			t.Fatalf("%q folds to %q, which is %q, %v", names, folded, back, err)
		}
	})
}

// TestFoldAll: a large hostlist in any order, sorted, folds to one range.
func TestFoldAll(t *testing.T) {
	names, err := slurm.Expand("gpu-node-[0001-9999]")
	if err != nil || len(names) != 9999 {
		t.Fatal(len(names), err)
	}
	slices.Reverse(names)
	slurm.SortHosts(names)
	if got := slurm.Fold(names); got != "gpu-node-[0001-9999]" {
		t.Error(got)
	}
}

func FuzzExpand(f *testing.F) {
	for _, c := range hostlists {
		f.Add(c.list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := slurm.Expand(list)
		if err != nil {
			return
		}
		back, err := slurm.Expand(slurm.Fold(names))
		if err != nil || !slices.Equal(back, names) {
			t.Fatalf("%q is %q, folded and expanded %q, %v", list, names, back, err)
		}
	})
}

// scontrol runs Slurm's own, on a configuration without a controller.
func scontrol(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	text := "ClusterName=t\nSlurmctldHost=localhost\nAuthType=auth/none\nNodeName=n1\nPartitionName=p Nodes=ALL\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("scontrol", args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err == nil
}

// TestHostlistsAgainstSlurm asks Slurm's own scontrol about the tables above, and about
// random lists.
func TestHostlistsAgainstSlurm(t *testing.T) {
	needs(t, "scontrol")
	for _, c := range hostlists {
		if out, ok := scontrol(t, "show", "hostnames", c.list); !c.ours && (strings.Join(strings.Fields(out), " ") != c.names || ok != (c.names != "")) {
			// Where the number overflows Slurm prints nothing and is content.
			if c.names != "" || out != "" {
				t.Errorf("Slurm expands %q to %q (%v), the table says %q", c.list, out, ok, c.names)
			}
		}
	}
	for _, c := range folds {
		if out, _ := scontrol(t, "show", "hostlist", c[0]); out != c[1] {
			t.Errorf("Slurm folds %s to %s, the table says %s", c[0], out, c[1])
		}
		if out, _ := scontrol(t, "show", "hostlistsorted", c[0]); out != c[2] {
			t.Errorf("Slurm folds %s sorted to %s, the table says %s", c[0], out, c[2])
		}
	}
}

// manyScontrol gives one scontrol many commands, and returns what it prints for each.
func manyScontrol(t *testing.T, commands []string) []string {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	text := "ClusterName=t\nSlurmctldHost=localhost\nAuthType=auth/none\nNodeName=n1\nPartitionName=p Nodes=ALL\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("scontrol")
	cmd.Env = append(os.Environ(), "SLURM_CONF="+conf, "TERM=dumb", "COLUMNS=32000") // one line a command
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\nexit\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	// It repeats each command after its prompt.
	answers := strings.Split("\n"+string(out), "\nscontrol: ")[1:]
	if len(answers) != len(commands)+1 {
		t.Fatalf("%d answers to %d commands", len(answers), len(commands))
	}
	for i := range commands {
		rest, ok := strings.CutPrefix(answers[i], commands[i])
		if !ok {
			t.Fatalf("the answer to %q begins with %.100q", commands[i], answers[i])
		}
		answers[i] = strings.TrimSpace(rest)
	}
	return answers[:len(commands)]
}

// TestRandomHostlistsAgainstSlurm: expressions of what both take are expanded, and lists of
// names folded, as Slurm's scontrol does: 1,000 of them, and 10,000 in long runs.
func TestRandomHostlistsAgainstSlurm(t *testing.T) {
	needs(t, "scontrol")
	count := 1000
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		count = 10_000
	}
	brackets := rapid.StringMatching(`\[(0{0,2}[1-9]|[1-9][0-9]|0[0-9]{2}-0[0-9]{2}|[1-9]-[1-9][0-9]|[0-9]{1,3}-[0-9]{1,3})(,([0-9]{1,3}|[1-9]-1[0-9])){0,3}\]`)
	word := rapid.Custom(func(t *rapid.T) string {
		var text strings.Builder
		text.WriteString(rapid.StringMatching(`[a-c]{1,2}(-?[a-c0-9]{0,3})?`).Draw(t, "prefix"))
		for range rapid.IntRange(0, 2).Draw(t, "dimensions") {
			text.WriteString(rapid.StringMatching(`x?`).Draw(t, "between") + brackets.Draw(t, "brackets"))
		}
		return text.String()
	})
	list := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(word, 1, 4).Draw(t, "words"), ",")
	})
	names := rapid.Custom(func(t *rapid.T) []string {
		return rapid.SliceOfN(rapid.StringMatching(`[ab]?[cd](0{0,2}[0-9]{1,3}|[0-9]{1,2}x[0-9]{1,2})?`), 1, 40).Draw(t, "names")
	})
	var commands, ours []string
	for seed := range count {
		switch seed % 4 {
		case 0, 1:
			text := list.Example(seed)
			expanded, _ := slurm.Expand(text)
			if len(expanded) > 5000 {
				continue
			}
			commands, ours = append(commands, "show hostnames "+text), append(ours, strings.Join(expanded, "\n"))
		case 2:
			all := names.Example(seed)
			commands, ours = append(commands, "show hostlist "+strings.Join(all, ",")), append(ours, slurm.Fold(all))
		case 3:
			all := names.Example(seed)
			commands = append(commands, "show hostlistsorted "+strings.Join(all, ","))
			slurm.SortHosts(all)
			ours = append(ours, slurm.Fold(all))
		}
	}
	bad := 0
	for i, theirs := range manyScontrol(t, commands) {
		if ours[i] != theirs && !strings.HasPrefix(theirs, "Invalid hostlist") {
			t.Errorf("%s: we say %.200q, Slurm %.200q", commands[i], ours[i], theirs)
			bad++
		} else if ours[i] != "" && strings.HasPrefix(theirs, "Invalid hostlist") {
			t.Errorf("%s: we say %.200q, Slurm refuses it", commands[i], ours[i])
			bad++
		}
		if bad > 10 {
			t.Fatal("and so on")
		}
	}
}

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs %s of Debian's slurm-client, slurmd, slurmctld: %v", program, err)
	}
}
