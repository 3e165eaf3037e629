package slurm_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// TestPlugStack: Pyxis is known to be built in, its arguments are looked at one by one, and
// other plugins are said not to be loaded.
func TestPlugStack(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"required /usr/local/lib/slurm/spank_pyxis.so", "note: required=/usr/local/lib/slurm/spank_pyxis.so: Pyxis is built in"},
		{"optional pyxis.so", "note: optional=pyxis.so: Pyxis is built in"},
		{"required spank_pyxis.so", "warning: execute_entrypoint=0: the entry point of an image is run"},
		{"required spank_pyxis.so execute_entrypoint=0", "warning: execute_entrypoint=0: the entry point of an image is run"},
		{"required spank_pyxis.so execute_entrypoint=1", "note: execute_entrypoint=1: it is so here anyway"},
		{"required spank_pyxis.so execute_entrypoint=on", "error: execute_entrypoint=on: want 1 or 0"},
		{"required spank_pyxis.so container_scope=global", "note: container_scope=global: it is so here anyway"},
		{"required spank_pyxis.so container_scope=job", "warning: container_scope=job: named containers stay"},
		{"required spank_pyxis.so container_scope=node", "error: container_scope=node: want job or global"},
		{"required spank_pyxis.so sbatch_support=0", "warning: sbatch_support=0: sbatch and salloc have container options, too"},
		{"required spank_pyxis.so importer=/opt/import", "note: importer=/opt/import: images are fetched"},
		{"required spank_pyxis.so use_squashfuse=yes", "note: use_squashfuse=yes: images are fetched"},
		{"required spank_pyxis.so colour=red", "warning: colour=red: unknown to Pyxis 0.24"},
		{"optional /usr/lib/slurm/spank_lua.so /etc/a.lua", "warning: optional=/usr/lib/slurm/spank_lua.so: the plugin is not loaded"},
		{"include none.d/*.conf", "note: include=none.d/*.conf: no such file is here"},
		{"include [", "error: include=[: it is no pattern of files"},
	} {
		report, err := slurm.LintFS(dir(map[string]string{"slurm.conf": "NodeName=a", "plugstack.conf": "# plugins\n" + c.line}), "slurm.conf")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(report.Findings, func(f slurm.Finding) bool { return strings.HasPrefix(f.String(), "plugstack.conf:2: "+c.want) }) {
			t.Errorf("%s: %v\nwant %s", c.line, report.Findings, c.want)
		}
	}
}

// TestPlugStackPlaces: the file is where PlugStackConfig says, or where a copy of the directory
// has it, and so is what it includes.
func TestPlugStackPlaces(t *testing.T) {
	plugins := func(files map[string]string) string {
		t.Helper()
		at := t.TempDir()
		for name, text := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(at, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, name), []byte(strings.ReplaceAll(text, "HERE", at)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		report, err := slurm.Lint(filepath.Join(at, "c"))
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range report.Findings {
			if f.Key == "optional" || f.Key == "PlugStackConfig" {
				all = append(all, f.File+" "+filepath.Base(f.Value))
			}
		}
		return strings.Join(all, ", ")
	}
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{"c/slurm.conf": "", "c/plugstack.conf": "optional a.so"}, "plugstack.conf a.so"},
		{map[string]string{"c/slurm.conf": ""}, ""},
		{map[string]string{"c/slurm.conf": "PlugStackConfig=sub/p.conf", "c/sub/p.conf": "optional a.so"}, "p.conf a.so"},
		{map[string]string{"c/slurm.conf": "PlugStackConfig=/no/such/p.conf", "c/p.conf": "include /no/such/p.d/*.conf", "c/p.d/1.conf": "optional a.so", "c/p.d/2.conf": "optional b.so"}, "1.conf a.so, 2.conf b.so"},
		{map[string]string{"c/slurm.conf": "PlugStackConfig=HERE/d/p.conf", "d/p.conf": "include HERE/e/*.conf", "e/1.conf": "optional a.so"}, "1.conf a.so"},
		{map[string]string{"c/slurm.conf": "PlugStackConfig=/no/such/p.conf"}, "slurm.conf p.conf"},
	} {
		if got := plugins(c.files); got != c.want {
			t.Errorf("%v: %q, want %q", c.files, got, c.want)
		}
	}
}

// TestPlugStackAgainstSlurm: lines that Slurm passes over are errors, and no others are.
func TestPlugStackAgainstSlurm(t *testing.T) {
	conf := theirs(t)
	for _, line := range []string{
		"required /none.so a b", "REQUIRED /none.so", "optional /none.so \"a b", "required \"/none.so\" x", "required", "include", "include a b", "Include /none/*.conf", "foo",
		"required /none.so # c", "  required\t/none.so", "required /none.so \\", "required=/none.so", "optional", "optional /none.so x=1",
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(conf), "plugstack.conf"), []byte(line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		text, _ := run(t, conf, "srun", "--nodes=zz", "true")
		over := strings.Contains(text, "Invalid line. Ignoring.")
		report, err := slurm.LintFS(dir(map[string]string{"slurm.conf": "NodeName=a", "plugstack.conf": line + "\n"}), "slurm.conf")
		if err != nil {
			t.Fatal(err)
		}
		ours := slices.ContainsFunc(report.Findings, func(f slurm.Finding) bool { return f.File == "plugstack.conf" && f.Severity == slurm.SeverityError })
		if ours != over {
			t.Errorf("%q: it is an error: %v; Slurm passes it over: %v:\n%s", line, ours, over, text)
		}
	}
}

// FuzzPlugStack: whatever the file has, something is said of each of its lines, and nothing breaks.
func FuzzPlugStack(f *testing.F) {
	f.Add("required spank_pyxis.so runtime_path=/run container_scope=job\noptional a.so \\\n b\n# c\ninclude x/*.conf")
	f.Add("include plugstack.conf\ninclude [\n required")
	f.Fuzz(func(t *testing.T, text string) {
		report, err := slurm.LintFS(dir(map[string]string{"slurm.conf": "NodeName=a", "plugstack.conf": text}), "slurm.conf")
		if err != nil {
			return
		}
		checkFindings(t, report)
		said := map[int]bool{}
		for _, f := range report.Findings {
			if f.File == "plugstack.conf" {
				said[f.Line] = true
			}
		}
		for i, line := range strings.Split(text, "\n") {
			line, _, _ = strings.Cut(line, "#")
			if strings.TrimSpace(line) != "" && !said[i+1] && report.Left == 0 {
				t.Fatalf("nothing is said of line %d: %q", i+1, line)
			}
		}
	})
}

// checkFindings: each says where it is and what is the matter, and they are counted right.
func checkFindings(t *testing.T, r *slurm.Report) {
	t.Helper()
	count := map[slurm.Severity]int{}
	for _, f := range r.Findings {
		count[f.Severity]++
		if f.File == "" || f.Text == "" || f.Line < 0 || f.Severity != slurm.SeverityNote && f.Remedy == "" {
			t.Fatalf("%+v", f)
		}
	}
	if r.Left == 0 && (count[slurm.SeverityError] != r.Errors || count[slurm.SeverityWarning] != r.Warnings || count[slurm.SeverityNote] != r.Notes) || len(count) > 3 {
		t.Fatalf("%v: %+v", count, r)
	}
	var b strings.Builder
	if err := r.Text(&b); err != nil || b.Len() == 0 {
		t.Fatal(err)
	}
}

// FuzzLint: whatever the files have, the report says where, and is of one mind with Load.
func FuzzLint(f *testing.F) {
	f.Add(guide["slurm.conf"]+guide["nodes.conf"], guide["gres.conf"], guide["topology.conf"], "ConstrainCores=yes\nAllowedRAMSpace=95.5")
	f.Add("NodeName=DEFAULT TmpDisk=x\nNodeName=n[1-4 Gres=gpu:4\nPartitionName=p Nodes=ALL", "Name=gpu Flags=x", "BlockName=a Nodes=n[1-4]\nBlockSizes=4", "MemorySwappiness=1\n=\nCgroupPlugin=x")
	f.Fuzz(func(t *testing.T, conf, gres, topology, cgroup string) {
		if strings.Contains(strings.ToLower(conf+gres+topology+cgroup), "include") || strings.Count(conf+gres+topology, "[") > 4 {
			return // files outside; large lists
		}
		files := dir(map[string]string{"slurm.conf": conf, "gres.conf": gres, "topology.conf": topology, "cgroup.conf": cgroup})
		report, err := slurm.LintFS(files, "slurm.conf")
		if err != nil {
			return
		}
		checkFindings(t, report)
		refused := slices.ContainsFunc(report.Findings, func(f slurm.Finding) bool { return f.Refused })
		c, err := slurm.LoadFS(files, "slurm.conf")
		if refused && err == nil || !refused && err != nil && report.Left == 0 {
			t.Fatalf("refused: %v, %v", refused, err)
		}
		if err == nil && report.Left == 0 && c.More+len(c.Warnings) != report.Errors+report.Warnings {
			t.Fatalf("%d more than %v, of %+v", c.More, c.Warnings, report)
		}
	})
}
