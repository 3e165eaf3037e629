package gangway_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are the texts for people, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/formats/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all[path] = string(text)
		}
	}
	return all
}

// sourceText is all Go source, that of tests or the other.
func sourceText(t *testing.T, tests bool) string {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range all {
		if s.test != tests {
			continue
		}
		text, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

// TestDocsLinks: what pages lead to is there, and README leads to each page.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	reached := map[string]bool{"README.md": true}
	for path, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to := filepath.Join(filepath.Dir(path), m[1])
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s leads to %s, which is not there", path, m[1])
			}
			reached[to] = true
		}
	}
	for path := range pages(t) {
		if !reached[path] && !reached[filepath.Dir(path)] {
			t.Errorf("no page leads to %s", path)
		}
	}
	if n := strings.Count(pages(t)["README.md"], "\n"); n > 150 {
		t.Errorf("README.md has %d lines, want at most 150", n)
	}
}

// TestDocsTests: the tests by which README and the threat model show what they claim exist.
func TestDocsTests(t *testing.T) {
	tests := sourceText(t, true)
	name := regexp.MustCompile("`(Test[A-Z]\\w*)`")
	for path, text := range pages(t) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(tests, "func "+m[1]+"(t *testing.T)") {
				t.Errorf("%s names %s, which is no test", path, m[1])
			}
		}
	}
}

// TestDocsMessages: the messages that troubleshoot.md explains are said by the programs.
func TestDocsMessages(t *testing.T) {
	text := sourceText(t, false)
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(pages(t)["docs/troubleshoot.md"]) {
		cell, ok := strings.CutPrefix(line, "| `")
		if !ok {
			continue
		}
		cell, _, _ = strings.Cut("`"+cell, " |")
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			words := strings.TrimSpace(strings.TrimSuffix(m[1], "..."))
			system := slices.Contains([]string{"no space left on device", "squeue"}, words)
			if !system && !strings.Contains(text, words) {
				t.Errorf("docs/troubleshoot.md explains %q, which nothing says", m[1])
			}
		}
	}
}

// TestDocsVerbs: what the pages have people type, they can.
func TestDocsVerbs(t *testing.T) {
	text := sourceText(t, false)
	typed := regexp.MustCompile("(?m)(?:^|[`$&;] ?|bin/|sudo )(gangwayd?) ([a-z]+)\\b")
	for path, page := range pages(t) {
		for _, m := range typed.FindAllStringSubmatch(page, -1) {
			if m[2] != "and" && !regexp.MustCompile(`(?:Name|Use):\s+"`+m[2]+`["  ]`).MatchString(text) {
				t.Errorf("%s has people type %q; there is no such verb", path, m[1]+" "+m[2])
			}
		}
	}
}

// TestDocsTrace: the functions by which ARCHITECTURE.md follows a job are in the packages
// that it says: those before the names, on the line or before it.
func TestDocsTrace(t *testing.T) {
	_, section, ok := strings.Cut(pages(t)["ARCHITECTURE.md"], "## One job, from submit to rank\n")
	if !ok {
		t.Fatal("ARCHITECTURE.md follows no job")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	declared := functions(t)
	quoted := regexp.MustCompile("`([^`]+)`(:?)")
	pkg, named := "", 0
	for line := range strings.Lines(section) {
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			switch {
			case m[2] == ":":
				pkg = m[1]
			case pkg != "" && regexp.MustCompile(`^(\w+\.)?\w+$`).MatchString(m[1]) && !slices.Contains([]string{"execve", "srun"}, m[1]):
				named++
				if !declared[pkg+" "+m[1]] {
					t.Errorf("ARCHITECTURE.md has a job pass through %s of %s, which is not there", m[1], pkg)
				}
			}
		}
	}
	if named < 20 {
		t.Errorf("ARCHITECTURE.md names %d functions on the way of a job", named)
	}
}

// functions are those of the module as "DIR NAME" or "DIR TYPE.NAME".
func functions(t *testing.T) map[string]bool {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, s := range all {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.test {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				of := f.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if id, ok := of.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			}
			found[s.dir+" "+name] = true
		}
	}
	return found
}
