package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Command is a set of Slurm's commands.
type Command uint8

// The commands that ask for resources.
const (
	Sbatch Command = 1 << iota
	Srun
	Salloc

	asking = Sbatch | Srun | Salloc
	batchy = Sbatch | Srun
)

// String is the command's name, of a set the first one's.
func (c Command) String() string {
	switch {
	case c&Sbatch != 0:
		return "sbatch"
	case c&Srun != 0:
		return "srun"
	}
	return "salloc"
}

// prefix is how the command's variables begin.
func (c Command) prefix() string {
	switch c {
	case Sbatch:
		return "SBATCH_"
	case Salloc:
		return "SALLOC_"
	}
	return "SLURM_"
}

// Options are what was asked for by a command line, the environment, and the directives of
// a script. [Parse] makes them.
type Options struct {
	Command Command
	Job     job.Spec
	Program job.Program // its files, signals and container; no arguments, no environment
	// Operands are the command and its arguments, or the script and its.
	Operands []string

	GPUs, GPUsPerNode, GPUsPerTask string // as written
	Dependency, Comment            string // as written
	Export, ExportFile             string
	Chdir                          string
	Quiet, Verbose                 int
	Help, Version                  bool
	Propagate                      []string // limits, by name; all if it was not said
	TestOnly                       bool
	Warnings                       []string // to be shown, without the command's name

	// Of sbatch.
	Wrap     string
	Wrapped  bool
	Parsable bool
	Wait     bool // also of the batch job's end
	Clusters string

	// Of srun.
	JobID                         job.ID
	Overlap, Exact, ExclusiveStep bool
	Relative                      int
	// OnlyOutput and OnlyError are the rank of which output is shown; -1: all.
	OnlyOutput, OnlyError          int
	Distribution, GPUBind, CPUBind string
	// Prolog and Epilog are programs that srun runs where it is, before the step and after it.
	Prolog, Epilog                 string
	MultiProg                      bool
	Overcommit                     bool // tasks may share CPUs
	DisableStatus, QuitOnInterrupt bool
	Immediate                      job.Duration // 0: wait for ever
	Interactive                    bool         // the shell of an allocation

	// Of salloc.
	NoShell bool
	Bell    Bell

	now    time.Time
	given  map[string]origin
	texts  map[string]string // values, as given last
	gres   []job.GRESRequest
	gpus   [4][]job.GRESRequest // by --gpus, and per node, task and socket
	memory [3]int64             // MiB by --mem, per CPU, per GPU
	perGPU int                  // tasks

	perTask []job.GRESRequest // by --tres-per-task

	containers []container
	hosts      []string // of an arbitrary distribution: the node of each task
	signal     string   // as written
	ignorePBS  bool
	getenv     func(string) string
}

// Bell says when salloc rings the terminal's bell.
type Bell uint8

// The answers: after a long wait, always, or not.
const (
	BellAfterDelay Bell = iota
	BellAlways
	BellNever
)

// origin is where an option was given. A higher one wins.
type origin uint8

const (
	unset origin = iota
	fromScript
	fromEnviron
	fromLine
)

// Given says whether an option, by its long name, was given anywhere.
func (o *Options) Given(name string) bool { return o.given[name] != unset }

// Asked says whether the command line or the script gave it.
func (o *Options) Asked(name string) bool { return o.asked(name) }

// Failed is how the command begins to say that its request was refused.
func (o *Options) Failed() string {
	switch o.Command {
	case Sbatch:
		return "Batch job submission failed"
	case Srun:
		return "Unable to allocate resources"
	}
	return "Job submit/allocate failed"
}

// asked says whether it was given otherwise than by the environment, which yields to
// options that contradict it.
func (o *Options) asked(name string) bool {
	return o.given[name] == fromLine || o.given[name] == fromScript
}

// Refusal is how a command of Slurm refuses. Its lines are printed each behind the
// command's name, where Plain is not set.
type Refusal struct {
	Lines []string
	Plain bool
	Code  int // exit code; Slurm's commands have 255 and 1, as it happens
}

// Error is the first line.
func (r *Refusal) Error() string { return r.Lines[0] }

func refuse(code int, format string, args ...any) error {
	return &Refusal{Lines: []string{"error: " + fmt.Sprintf(format, args...)}, Code: code}
}

// fatal is a refusal that Slurm marks as such.
func fatal(format string, args ...any) error {
	return &Refusal{Lines: []string{"fatal: " + fmt.Sprintf(format, args...)}, Code: 1}
}

// badOption is the exit code of an option that Slurm's getopt loop refuses: exit(-1).
const badOption = 255

// value is what an option was given.
type value struct {
	name string // the option's, without dashes
	text string
	bare bool // an optional argument was left out
	from origin
}

func (v value) invalid() error { return refuse(badOption, "Invalid --%s specification", v.name) }

// number reads a whole number that is at least low; blanks before it are no matter, as for
// strtol(3).
func (v value) number(low int) (int, error) {
	n, err := strconv.Atoi(strings.TrimLeft(v.text, spaces))
	if err != nil || n < low || n > 1<<30 {
		return 0, refuse(1, "Invalid numeric value %q for --%s.", v.text, v.name)
	}
	return n, nil
}

// on reads the value of an option without an argument, which only the environment may
// give: empty, yes, or a number that is not 0.
func (v value) on() bool {
	if v.from != fromEnviron {
		return true
	}
	return !slices.Contains([]string{"0", "no", "NO", "No", "false", "FALSE"}, v.text)
}

// option is a line of the table of options.
type option struct {
	Flag
	in  Command
	env string // the variable, behind the prefix of the command; empty: none
	set func(*Options, value) error
	why string // of one without set: why it is refused
}

// optionsOf is the part of the table that a command has, by name: in this order Slurm's commands
// say which options an ambiguous one could be.
func optionsOf(c Command) []option {
	all := grouped(c)
	slices.SortFunc(all, func(a, b option) int { return strings.Compare(a.Long, b.Long) })
	return all
}

// grouped is the same in the order in which people look for options.
func grouped(c Command) []option {
	all := slices.Concat(resourceOptions(), placeOptions(), jobOptions(), programOptions(), stepOptions(), containerOptions(), otherOptions())
	return slices.DeleteFunc(all, func(o option) bool { return o.in&c == 0 })
}

func flagsOf(table []option) []Flag {
	flags := make([]Flag, len(table))
	for i := range table {
		flags[i] = table[i].Flag
	}
	return flags
}

// apply sets an option.
func (o *Options) apply(opt *option, v value) error {
	v.name = opt.Long
	if opt.set == nil {
		why := opt.why
		if why == "" {
			why = "not supported by Gangway yet"
		}
		return refuse(badOption, "--%s: %s", opt.Long, why)
	}
	if err := opt.set(o, v); err != nil {
		return err
	}
	o.given[opt.Long] = max(v.from, o.given[opt.Long])
	if o.texts == nil {
		o.texts = map[string]string{}
	}
	if o.texts[opt.Long] = v.text; v.text == "" && opt.Argument != RequiredArgument {
		o.texts[opt.Long] = "set"
	}
	return nil
}

// Source is what options are made of.
type Source struct {
	Args []string // the command line, without the command's name
	// Set and Operands are there instead of Args where the command line was read already.
	Set      []Choice
	Operands []string
	Getenv   func(string) string
	Now      time.Time // for moments that are relative
	// Script returns the script of sbatch: that of Options.Operands, or standard input.
	Script func(*Options) ([]byte, error)
}

// Parse reads the directives of a script, over these the environment, and over that the
// command line.
func Parse(c Command, from Source) (*Options, error) {
	o := &Options{Command: c, now: from.Now, getenv: from.Getenv, given: map[string]origin{}, Relative: -1, OnlyOutput: -1, OnlyError: -1}
	table := optionsOf(c)
	given, operands, err := from.line(table)
	if err != nil {
		return nil, err
	}
	o.Operands = operands
	if at := slices.Index(operands, ":"); at >= 0 && at < len(operands)-1 {
		return nil, refuse(1, "%q between parts of a heterogeneous job: not supported by Gangway yet", ":")
	}
	if c == Sbatch {
		o.Job.Requeue = true // unless --no-requeue: JobRequeue of slurm.conf is 1 by default
		if err := o.early(table, given); err != nil {
			return nil, err
		}
		if o.Program.Script, err = from.script(o); err != nil || o.Help || o.Version {
			return o, err
		}
		if err := o.directives(table, o.Program.Script); err != nil {
			return nil, err
		}
	}
	if err := o.environ(table); err != nil {
		return nil, err
	}
	for _, g := range given {
		if err := o.apply(&table[g.Flag], value{text: g.Value, bare: g.Bare, from: fromLine}); err != nil {
			return nil, err
		}
	}
	return o, o.finish()
}

// Choice is an option on a command line that was read already.
type Choice struct {
	Name, Value string
	Bare        bool // an optional argument was left out
}

// Option is what a program has to know of an option to read it.
type Option struct {
	Flag
	Help string
}

// OptionsOf are the options of a command that are carried out.
func OptionsOf(c Command) []Option {
	var all []Option
	texts := helpTexts(c)
	for _, o := range optionsOf(c) {
		if o.set != nil {
			all = append(all, Option{o.Flag, texts[o.Long]})
		}
	}
	return all
}

// line is what the command line gives.
func (s *Source) line(table []option) (given []Given, operands []string, err error) {
	if s.Set == nil && s.Operands == nil {
		return Getopt(flagsOf(table), s.Args, true)
	}
	for _, set := range s.Set {
		n, err := findLong(flagsOf(table), set.Name)
		if err != nil {
			return nil, nil, err
		}
		given = append(given, Given{Flag: n, Value: set.Value, Bare: set.Bare})
	}
	return given, s.Operands, nil
}

// early sets what decides where the script comes from, and whether any is needed.
func (o *Options) early(table []option, given []Given) error {
	for _, g := range given {
		switch table[g.Flag].Long {
		case "wrap":
			o.Wrap, o.Wrapped = g.Value, true
		case "help", "usage":
			o.Help = true
		case "version":
			o.Version = true
		case "ignore-pbs":
			o.ignorePBS = true
		}
	}
	if o.Wrapped && len(o.Operands) > 0 {
		return refuse(1, "Script arguments not permitted with --wrap option")
	}
	return nil
}

// script is the text of the script, or what is made of --wrap.
func (s *Source) script(o *Options) ([]byte, error) {
	switch {
	case o.Help || o.Version:
		return nil, nil
	case o.Wrapped:
		return []byte("#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" + o.Wrap + "\n"), nil
	}
	b, err := s.Script(o)
	if err != nil {
		return nil, err
	}
	return b, CheckScript(b)
}
