// Package gangway_test holds the house rules: what ARCHITECTURE.md and
// CONTRIBUTING.md promise about the code and a machine can check. The rules that
// are tables (who may import whom, where a dependency may be used and why) are read
// from ARCHITECTURE.md itself, so that the page cannot be wrong.
//
// The rules look at syntax, of all files whatever their build tags; they run in a
// second and need nothing but the go command.
package gangway_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/gangway-hpc/gangway"

// source is one parsed Go file of the module.
type source struct {
	path  string // from the root
	dir   string // its package
	test  bool
	lines int
	file  *ast.File
	fset  *token.FileSet
}

// at is where n stands, for messages.
func (s source) at(n ast.Node) string { return s.fset.Position(n.Pos()).String() }

// span is the number of lines of n.
func (s source) span(n ast.Node) int {
	return s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
}

// sources parses every Go file of the module once.
var sources = sync.OnceValues(func() ([]source, error) {
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "testdata", "tools"}, d.Name())) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil && ast.IsGenerated(file) { // its generator answers for it
			return nil
		}
		all = append(all, source{
			path: path, dir: filepath.Dir(path), test: strings.HasSuffix(path, "_test.go"),
			lines: bytes.Count(text, []byte("\n")), file: file, fset: fset,
		})
		return err
	})
	return all, err
})

// files returns the parsed files, with or without those of tests.
func files(t *testing.T, tests bool) []source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	if tests {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(s source) bool { return s.test })
}

// table returns the rows of the Markdown table below heading in ARCHITECTURE.md,
// without the head.
func table(t *testing.T, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("ARCHITECTURE.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("ARCHITECTURE.md has no table in section %q", heading)
	}
	return rows
}

// quoted returns what stands between backquotes in cell.
func quoted(cell string) []string {
	var names []string
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			names = append(names, part)
		}
	}
	return names
}

// goMod is what the rules need of a go.mod.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Replace []struct{ Old struct{ Path string } }
}

func readGoMod(t *testing.T, name string) goMod {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	var m goMod
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}
