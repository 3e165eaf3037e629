package gangway_test

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The budgets. Files aim at 100 to 400 lines and functions at 10.
const (
	maxFile = 600
	maxFunc = 100
)

// allowed are the exceptions to the rules below, each with its reason. One that is
// not needed any more fails.
var allowed = map[string]string{
	"var internal/cli.version": "stamped by the linker",
	"var internal/cli.commit":  "stamped by the linker",
	"var internal/cli.date":    "stamped by the linker",
}

// exceptions hands out the exceptions and remembers which were used.
type exceptions struct {
	kind string
	used map[string]bool
}

func newExceptions(t *testing.T, kind string) *exceptions {
	e := &exceptions{kind + " ", map[string]bool{}}
	t.Cleanup(func() {
		for key := range allowed {
			if strings.HasPrefix(key, e.kind) && !e.used[key] {
				t.Errorf("house_code_test.go: the exception %q is not needed", key)
			}
		}
	})
	return e
}

func (e *exceptions) allow(name string) bool {
	key := e.kind + name
	e.used[key] = true
	return allowed[key] != ""
}

func TestFileSizes(t *testing.T) {
	e := newExceptions(t, "file")
	for _, s := range files(t, true) {
		if s.lines > maxFile && !e.allow(s.path) {
			t.Errorf("%s has %d lines, more than %d", s.path, s.lines, maxFile)
		}
	}
}

// TestNoPrograms: what is built does not belong into the repository. The largest files of
// it are generated code, documents and small images, far below the bound.
func TestNoPrograms(t *testing.T) {
	const most = 256 << 10
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("needs git and its repository: " + err.Error())
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if st, err := os.Lstat(name); err == nil && st.Size() > most {
			t.Errorf("%s has %d bytes, more than %d", name, st.Size(), most)
		}
	}
}

func TestFunctions(t *testing.T) {
	e := newExceptions(t, "func")
	for _, s := range files(t, false) {
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.span(f); n > maxFunc && !e.allow(s.dir+"."+f.Name.Name) {
				t.Errorf("%s: %s has %d lines, more than %d", s.at(f), f.Name.Name, n, maxFunc)
			}
			if f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s: func init: what a program does begins in main", s.at(f))
			}
		}
	}
}

// TestDocs: every package says what it is for, every exported name what it means.
func TestDocs(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range files(t, true) {
		documented[s.dir] = documented[s.dir] || s.file.Doc.Text() != ""
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no comment", dir)
		}
	}
	for _, s := range files(t, false) {
		for _, decl := range s.file.Decls {
			for _, name := range undocumented(decl) {
				t.Errorf("%s: exported %s has no comment", s.at(name), name.Name)
			}
		}
	}
}

// undocumented returns the exported names of decl without a comment. The comment of
// a group counts for all in it.
func undocumented(decl ast.Decl) []*ast.Ident {
	var bad []*ast.Ident
	check := func(names []*ast.Ident, docs ...*ast.CommentGroup) {
		for _, name := range names {
			if name.IsExported() && !slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool { return d.Text() != "" }) {
				bad = append(bad, name)
			}
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil || receiver(d).IsExported() {
			check([]*ast.Ident{d.Name}, d.Doc)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				check([]*ast.Ident{s.Name}, d.Doc, s.Doc, s.Comment)
			case *ast.ValueSpec:
				check(s.Names, d.Doc, s.Doc, s.Comment)
			}
		}
	}
	return bad
}

// receiver is the name of the type that f is a method of.
func receiver(f *ast.FuncDecl) *ast.Ident {
	typ := f.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		default:
			return typ.(*ast.Ident)
		}
	}
}

// TestNoMutableState: a package-level variable is a sentinel, a compiled constant
// or a table written out in full, and nothing in its package assigns to it.
func TestNoMutableState(t *testing.T) {
	e := newExceptions(t, "var")
	assigned := map[string]bool{} // dir.name
	for _, s := range files(t, false) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			for _, name := range assignees(n) {
				assigned[s.dir+"."+name] = true
			}
			return true
		})
	}
	for _, s := range files(t, false) {
		for _, decl := range s.file.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				v := spec.(*ast.ValueSpec)
				embedded := hasEmbed(d.Doc)
				for i, name := range v.Names {
					constant := embedded || i < len(v.Values) && isConstant(v.Values[i])
					if name.Name == "_" || constant && !assigned[s.dir+"."+name.Name] || e.allow(s.dir+"."+name.Name) {
						continue
					}
					t.Errorf("%s: package variable %s may change", s.at(name), name.Name)
				}
			}
		}
	}
}

func hasEmbed(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// assignees returns the names that n assigns to with = or ++, by themselves or
// through an index or a field. It does not know scopes: a local variable that is
// assigned to may not have the name of a package-level one.
func assignees(n ast.Node) []string {
	var targets []ast.Expr
	switch s := n.(type) {
	case *ast.AssignStmt:
		if s.Tok != token.DEFINE {
			targets = s.Lhs
		}
	case *ast.IncDecStmt:
		targets = []ast.Expr{s.X}
	}
	var names []string
	for _, target := range targets {
		for target != nil {
			switch x := target.(type) {
			case *ast.IndexExpr:
				target = x.X
			case *ast.SelectorExpr:
				target = x.X
			case *ast.Ident:
				names = append(names, x.Name)
				target = nil
			default:
				target = nil
			}
		}
	}
	return names
}

// isConstant says whether e is one of the values a package-level variable may have.
func isConstant(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.CompositeLit, *ast.BasicLit, *ast.SelectorExpr: // the last as in binary.LittleEndian
		return true
	case *ast.CallExpr:
		return slices.Contains([]string{
			"errors.New", "fmt.Errorf", "regexp.MustCompile", "crc32.MakeTable", "sync.OnceValue", "sync.OnceValues", "strings.NewReplacer",
		}, callee(x))
	}
	return false
}

// callee is the name of the function that c calls, if it is written pkg.Name.
func callee(c *ast.CallExpr) string {
	sel, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := sel.X.(*ast.Ident); ok {
		return pkg.Name + "." + sel.Sel.Name
	}
	return ""
}

// TestErrors: a text says what was being done, and an error handed on stays one.
func TestErrors(t *testing.T) {
	for _, s := range files(t, false) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || callee(c) != "errors.New" && callee(c) != "fmt.Errorf" || len(c.Args) == 0 {
				return true
			}
			lit, ok := c.Args[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			for _, begin := range []string{"failed to", "unable to", "could not", "error "} {
				if strings.HasPrefix(strings.ToLower(text), begin) {
					t.Errorf("%s: %q begins with %q: say what was being done", s.at(c), text, begin)
				}
			}
			errs := 0
			for _, arg := range c.Args[1:] {
				if isError(arg) {
					errs++
				}
			}
			if strings.Count(text, "%w") < errs {
				t.Errorf("%s: %q hides an error from errors.Is: use %%w", s.at(c), text)
			}
			return true
		})
	}
}

// isError says whether e is by its name an error: err, fooErr, x.err, x.Err().
func isError(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name == "err" || strings.HasSuffix(x.Name, "Err") || strings.HasPrefix(x.Name, "err") && x.Name != "errno"
	case *ast.SelectorExpr:
		return isError(x.Sel) || x.Sel.Name == "Err"
	case *ast.CallExpr:
		sel, ok := x.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Err"
	}
	return false
}
