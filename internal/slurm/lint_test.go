package slurm_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestLintGolden: what is said of three configurations: of a large cluster, of a small one, and of
// one in which each line is wrong.
func TestLintGolden(t *testing.T) {
	for name, errors := range map[string]bool{"dgx": false, "lab": false, "broken": true} {
		report, err := slurm.Lint(filepath.Join("testdata", "lint", name))
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := report.Text(&text); err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", "lint", name+".golden")
		if *update {
			if err := os.WriteFile(golden, text.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if text.String() != string(want) {
			t.Errorf("%s is\n%s\nwant (go test -update, if that is right)\n%s", name, &text, want)
		}
		if (report.Errors > 0) != errors {
			t.Errorf("%s has %d errors", name, report.Errors)
		}
		for _, f := range report.Findings {
			if f.File == "" || f.Text == "" || f.Severity != slurm.SeverityNote && f.Remedy == "" {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

// TestLintMany: what is said on very many lines is kept up to a number, and all of it counted; errors
// are not hidden by warnings.
func TestLintMany(t *testing.T) {
	var b strings.Builder
	for i := range 12_000 {
		fmt.Fprintf(&b, "NodeName=n%d TmpDisk=5\n", i)
	}
	files := dir(map[string]string{"slurm.conf": b.String() + "PartitionName=p Nodes=ghost\nMaxArraySize=x\n"})
	report, err := slurm.LintFS(files, "slurm.conf")
	if err != nil {
		t.Fatal(err)
	}
	// One of ghost, one of MaxArraySize, and RealMemory of each node; TmpDisk, no default partition, nodes of no partition.
	if report.Errors != 12_002 || report.Warnings != 12_002 || report.Left != 4_004 || report.Findings[0].Severity != slurm.SeverityError {
		t.Errorf("%d errors, %d warnings, %d left; the first is %v", report.Errors, report.Warnings, report.Left, report.Findings[0])
	}
	if !slices.ContainsFunc(report.Findings, func(f slurm.Finding) bool { return f.Refused }) {
		t.Error("the error of MaxArraySize is left out")
	}
	if _, err := slurm.LoadFS(files, "slurm.conf"); err == nil {
		t.Error("the files are taken")
	}
}
