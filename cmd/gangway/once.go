package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// wordsFlag is a flag of words that may not be empty: what a shell makes of an unset
// variable would else count as not given. Given once, it may come again only with the
// same value, as for Pyxis; else each value counts. It implements pflag.Value.
type wordsFlag struct {
	name   string
	kind   string
	once   bool
	values *[]string
	first  *string // with once: the value
	given  bool
}

// onceVar makes a flag that has one value.
func onceVar(fl *pflag.FlagSet, p *string, name, short, usage string) {
	fl.VarP(&wordsFlag{name: name, kind: "string", once: true, first: p}, name, short, usage)
}

// eachVar makes a flag that may be given several times.
func eachVar(fl *pflag.FlagSet, p *[]string, name, short, usage string) {
	fl.VarP(&wordsFlag{name: name, kind: "stringArray", values: p}, name, short, usage)
}

// Set implements pflag.Value.
func (w *wordsFlag) Set(text string) error {
	switch {
	case text == "":
		return fault.Usage(errors.New("the value is empty"), "give --"+w.name+"=VALUE, or leave it out; is a variable of the shell unset?")
	case !w.once:
		*w.values = append(*w.values, text)
		return nil
	case w.given && *w.first != text:
		return fault.Usage(fmt.Errorf("it was given before as %q", *w.first), "give --"+w.name+" once")
	}
	*w.first, w.given = text, true
	return nil
}

// String implements pflag.Value.
func (w *wordsFlag) String() string {
	if w.given {
		return *w.first
	}
	return ""
}

// Type implements pflag.Value.
func (w *wordsFlag) Type() string { return w.kind }
