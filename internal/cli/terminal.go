package cli

import (
	"fmt"
	"os"

	"golang.org/x/term"
)

// RawTerminal makes the terminal f hand on keys as they come. restore undoes that, and may
// be called more than once. What is no terminal stays as it is.
func RawTerminal(f *os.File) (restore func(), err error) {
	if !term.IsTerminal(int(f.Fd())) {
		return func() {}, nil
	}
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("make terminal raw: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }, nil
}

// KeepTerminal returns what puts the terminal f back as it is now, whatever programs that
// are started do to it.
func KeepTerminal(f *os.File) (restore func()) {
	old, err := term.GetState(int(f.Fd()))
	if err != nil {
		return func() {}
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }
}

// WindowSize is how large the terminal f is; 24 and 80 if it is none.
func WindowSize(f *os.File) (rows, columns uint16) {
	w, h, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 24, 80
	}
	return uint16(h), uint16(w)
}
