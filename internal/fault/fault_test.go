package fault_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/gangway-hpc/gangway/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// full is the example of the package and of Text.
func full() *fault.Error {
	return &fault.Error{
		What:  fmt.Errorf("create user namespace: %w", syscall.EPERM),
		Cause: "kernel.apparmor_restrict_unprivileged_userns is 1 on gpu07",
		Hint:  "install the profile that the package ships: gangway doctor --fix apparmor",
		See:   "gangway show job 4711",
		Code:  fault.CodeUnreachable,
	}
}

func TestTextGolden(t *testing.T) {
	cases := []struct {
		name  string
		err   error
		color bool
	}{
		{"plain error", errors.New("open x: no such file or directory"), false},
		{"all four lines", full(), false},
		{"colour", full(), true},
		{"wrapped: the first line is the whole", fmt.Errorf("start container on node gpu07: %w", full()), false},
		{"outer fields win, inner ones fill in", &fault.Error{What: full(), Hint: "outer hint"}, false},
		{"joined errors", errors.Join(errors.New("one"), full()), false},
		{"line breaks", &fault.Error{What: errors.New("a\nb\r\n\tc\n"), Hint: "d\n\n\ne"}, false},
		{"terminal escapes", errors.New("name \x1b[2J\x07\u202egnp.exe\u2028 \xff\x00\u009b bel"), false},
		{"other scripts stay", errors.New("open größe/データ: tab\there"), false},
		{"empty", errors.New(" \n"), false},
	}
	var got strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&got, "== %s (exit %d)\n%s", c.name, fault.Code(c.err), fault.Text("gangway", c.err, c.color))
	}
	golden := filepath.Join("testdata", "text.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}

func TestErrorIsTransparent(t *testing.T) {
	inner := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
	err := fmt.Errorf("read config: %w", &fault.Error{What: inner, Hint: "make one"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("errors.Is does not see through")
	}
	if pe, ok := errors.AsType[*fs.PathError](err); !ok || pe != inner {
		t.Error("errors.As does not see through")
	}
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Hint != "make one" {
		t.Error("errors.As does not find the fault")
	}
	if got, want := err.Error(), "read config: open x: file does not exist"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

func TestCode(t *testing.T) {
	cases := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 125},
		{&fault.Error{What: errors.New("x")}, 125},
		{fault.Usage(errors.New("x"), "y"), 2},
		{fmt.Errorf("w: %w", full()), 13},
		{&fault.Error{What: full(), Code: fault.CodeNotFound}, 127},
		{&fault.Error{What: full()}, 13},
	}
	for _, c := range cases {
		if got := fault.Code(c.err); got != c.want {
			t.Errorf("Code(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

// TestCodeTable keeps the constants, the table people read and DESIGN's numbers
// the same.
func TestCodeTable(t *testing.T) {
	var table strings.Builder
	for _, row := range fault.CodeTable() {
		fmt.Fprintf(&table, "%s %s\n", row.Code, row.Meaning)
	}
	for _, code := range []int{
		fault.CodeOK, fault.CodeUsage, fault.CodeUnreachable, fault.CodeFailed,
		fault.CodeNotExecutable, fault.CodeNotFound, fault.CodeInterrupted,
	} {
		if !strings.Contains(table.String(), fmt.Sprint(code)) {
			t.Errorf("exit code %d is not in the table", code)
		}
	}
	got := []int{fault.CodeNotExecutable, fault.CodeSignal(syscall.SIGINT), fault.CodeSignal(syscall.SIGTERM)}
	if want := []int{126, fault.CodeInterrupted, 143}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("codes %v, want %v", got, want)
	}
}

// FuzzText proves the promise of Text for any bytes: one to four lines, each
// begun by the program's name, nothing in them a terminal acts upon.
func FuzzText(f *testing.F) {
	f.Add("what\nnext", "cause\x1b[0m", "hint\r", "see\u2029")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, what, cause, hint, see string) {
		err := &fault.Error{What: errors.New(what), Cause: cause, Hint: hint, See: see}
		text := fault.Text("gangway", err, false)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > 4 || !strings.HasPrefix(lines[0], "gangway: error: ") {
			t.Fatalf("%d lines: %q", len(lines), text)
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, "gangway: ") {
				t.Fatalf("stray line %q", line)
			}
			if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
				t.Fatalf("unsafe line %q", line)
			}
		}
	})
}
