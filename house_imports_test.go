package gangway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// impure lists what a pure package may not import, because decisions are functions
// of state, event and time given.
var impure = map[string][]string{
	"sched": {"context", "net", "net/http", "os", "os/exec", "sync", "syscall"},
}

// TestImports checks every import of one of our packages by another against the
// table of packages, and that the table lists what there is.
func TestImports(t *testing.T) {
	type row struct {
		may    []string
		exists bool
	}
	rows := map[string]row{}
	for _, cells := range table(t, "Packages") {
		rows[quoted(cells[0])[0]] = row{may: quoted(cells[2]), exists: cells[3] == "yes"}
	}
	seen := map[string]bool{}
	for _, s := range files(t, true) {
		seen[s.dir] = true
		r, listed := rows[s.dir]
		if !listed {
			t.Errorf("%s: package %s has no row in ARCHITECTURE.md", s.path, s.dir)
			continue
		}
		if s.test {
			continue // a test may import what it tests against
		}
		for _, spec := range s.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if slices.Contains(impure[s.dir], path) {
				t.Errorf("%s: %s is pure and imports %s", s.at(spec), s.dir, path)
			}
			if ours, ok := strings.CutPrefix(path, module+"/"); ok && !slices.Contains(r.may, ours) {
				t.Errorf("%s: %s may not import %s (ARCHITECTURE.md)", s.at(spec), s.dir, ours)
			}
		}
	}
	for dir, r := range rows {
		if r.exists != seen[dir] {
			t.Errorf("ARCHITECTURE.md says exists=%v of %s, which is not so", r.exists, dir)
		}
		for _, other := range r.may {
			if _, ok := rows[other]; !ok {
				t.Errorf("ARCHITECTURE.md lets %s import %s, which it does not list", dir, other)
			}
		}
	}
}

// TestDependencies checks the table of dependencies against go.mod and against
// where they are imported.
func TestDependencies(t *testing.T) {
	fences := map[string][]string{}
	for _, cells := range table(t, "Dependencies") {
		name := quoted(cells[0])[0]
		fences[name] = quoted(cells[1])
		if len(cells[2]) < 20 {
			t.Errorf("ARCHITECTURE.md gives no reason for %s", name)
		}
	}
	mod := readGoMod(t, "go.mod")
	for _, r := range append(mod.Replace, readGoMod(t, "tools/go.mod").Replace...) {
		t.Errorf("go.mod replaces %s: then nobody can install the module by its name", r.Old.Path)
	}
	direct := map[string]bool{}
	for _, r := range mod.Require {
		if !r.Indirect {
			direct[r.Path] = true
			if _, ok := fences[r.Path]; !ok {
				t.Errorf("ARCHITECTURE.md does not say why go.mod requires %s", r.Path)
			}
		}
	}
	for name := range fences {
		if !direct[name] {
			t.Errorf("ARCHITECTURE.md lists %s, which go.mod does not require directly", name)
		}
	}
	for _, s := range files(t, true) {
		for _, spec := range s.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			for name, dirs := range fences {
				if path != name && !strings.HasPrefix(path, name+"/") {
					continue
				}
				if !slices.Contains(dirs, s.dir) && !s.test {
					t.Errorf("%s: %s is used in %s, not in %v (ARCHITECTURE.md)", s.at(spec), name, s.dir, dirs)
				}
			}
		}
	}
}

// forbidden may never be linked into gangway: it starts once a container, and these
// cost it milliseconds whether used or not.
var forbidden = []string{
	"google.golang.org/grpc", "modernc.org/sqlite", "github.com/mattn/go-sqlite3", "github.com/prometheus/",
	"github.com/rivo/tview", "github.com/gdamore/tcell", "github.com/charmbracelet/", "charm.land/", "github.com/NVIDIA/go-nvml",
	module + "/sched/server", module + "/launcher/agent", module + "/internal/store", module + "/internal/wire", module + "/internal/top",
}

// TestLinks prints what gangway links and what that costs at its start. Only a
// forbidden package fails it.
func TestLinks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gangway")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/gangway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	st, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	modules, packages := linked(t)
	t.Logf("gangway links %d packages and is %.1f MB big; modules: %s", packages, float64(st.Size())/1e6, strings.Join(modules, ", "))

	trace := exec.Command(program, "version")
	trace.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var stderr bytes.Buffer
	trace.Stderr = &stderr
	if err := trace.Run(); err != nil {
		t.Fatal(err)
	}
	sum, top := initTimes(stderr.String())
	if sum == 0 {
		t.Errorf("no init times in %q", stderr.String())
	}
	t.Logf("package initialisation takes %.3f ms; most: %s", sum, strings.Join(top, ", "))
}

// linked lists the modules and counts the packages of gangway, and fails t for
// those that are forbidden.
func linked(t *testing.T) (modules []string, packages int) {
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Module", "./cmd/gangway")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; packages++ {
		var p struct {
			ImportPath string
			Module     *struct{ Path, Version string }
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, f := range forbidden {
			if strings.HasPrefix(p.ImportPath, f) {
				t.Errorf("gangway links %s", p.ImportPath)
			}
		}
		if p.Module != nil && p.Module.Path != module {
			modules = append(modules, p.Module.Path+" "+p.Module.Version)
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), packages
}

// initTimes reads what GODEBUG=inittrace=1 prints ("init os @0.8 ms, 0.01 ms clock,
// ..."): the sum in ms and the five packages that take longest.
func initTimes(trace string) (sum float64, top []string) {
	type entry struct {
		name string
		ms   float64
	}
	var all []entry
	for lines := bufio.NewScanner(strings.NewReader(trace)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 7 || f[0] != "init" || f[6] != "clock," {
			continue
		}
		ms, err := strconv.ParseFloat(f[4], 64)
		if err == nil {
			all = append(all, entry{f[1], ms})
			sum += ms
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return int((b.ms - a.ms) * 1e6) })
	for _, e := range all[:min(5, len(all))] {
		top = append(top, fmt.Sprintf("%s %.3f", e.name, e.ms))
	}
	return sum, top
}
