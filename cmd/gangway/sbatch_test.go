package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// endless is a reader of lines of a script that have no end, which counts what is read.
type endless struct{ n int }

// Read implements io.Reader.
func (e *endless) Read(b []byte) (int, error) {
	copy(b, bytes.Repeat([]byte("# x\n"), len(b)/4+1))
	e.n += len(b)
	return len(b), nil
}

// TestReadScript: scripts are read up to a size, and those that are none are refused in Slurm's
// words, from a file or standard input.
func TestReadScript(t *testing.T) {
	const (
		large   = "error: Batch job submission failed: Pathname of a file, directory or other parameter too long"
		nul     = "error: The Slurm controller does not allow scripts that"
		dos     = `error: Batch script contains DOS line breaks (\r\n)`
		first   = "error: This does not look like a batch script.  The first"
		shebang = "#!/bin/sh\n"
	)
	for name, test := range map[string]struct{ text, want string }{
		"64 MB":           {shebang + strings.Repeat("# x\n", 16<<20), large},
		"as large as may": {shebang + strings.Repeat("#", maxScript-len(shebang)), ""},
		"one more":        {shebang + strings.Repeat("#", maxScript-len(shebang)+1), large},
		"NUL":             {shebang + "echo a\x00b\n", nul},
		"NUL in options":  {shebang + "#SBATCH -J a\x00b\n", nul},
		"NUL first":       {"\x00" + shebang, "error: Batch script contains only whitespace!"},
		"CRLF":            {"#!/bin/sh\r\necho a\r\n", dos},
		"CRLF once":       {shebang + "echo a\r\n", dos},
		"CR":              {shebang + "printf 'a\rb'\n", ""},
		"empty":           {"", "error: Batch script is empty!"},
		"no end of line":  {"#!/bin/sh", ""},
		"blank line":      {"\n" + shebang, first},
		"byte order mark": {"\ufeff" + shebang, first},
	} {
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, operands := range [][]string{{file}, {}, {"-"}} {
			env := &cli.Env{Stdin: strings.NewReader(test.text), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
			_, err := slurm.Parse(slurm.Sbatch, slurm.Source{Args: operands, Getenv: env.Getenv, Script: func(o *slurm.Options) ([]byte, error) {
				script, _, err := readScript(env, o.Operands)
				if err == nil && string(script) != test.text {
					t.Errorf("%s %q: %d bytes of %d", name, operands, len(script), len(test.text))
				}
				return script, err
			}})
			var refused *slurm.Refusal
			if errors.As(err, &refused) != (test.want != "") || refused != nil && (refused.Lines[0] != test.want || refused.Code != 1) {
				t.Errorf("%s %q: %v, want %q", name, operands, err, test.want)
			}
		}
	}
	e := &endless{}
	_, _, err := readScript(&cli.Env{Stdin: e}, nil)
	var refused *slurm.Refusal
	if !errors.As(err, &refused) || refused.Lines[0] != large || e.n > 2*maxScript {
		t.Errorf("of input without end %d bytes are read: %v", e.n, err)
	}
}
