package fault

import (
	"errors"
	"strconv"
	"syscall"
)

// The exit codes of every program of Gangway. A command run by Gangway passes
// its own code through; these are for what Gangway itself has to say.
const (
	CodeOK            = 0   // done
	CodeUsage         = 2   // the command line is wrong
	CodeUnreachable   = 13  // the controller does not answer
	CodeFailed        = 125 // Gangway could not do it
	CodeNotExecutable = 126 // the command was found and cannot be executed
	CodeNotFound      = 127 // the command was not found
	CodeInterrupted   = 130 // interrupted (SIGINT), that is CodeSignal(SIGINT)
)

// Exit is the exit code of a command that was run, as an error: a program ends with it
// and prints nothing, since the command has said what there was to say.
type Exit int

// Error implements error.
func (e Exit) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// CodeSignal is the exit code for something killed by a signal.
func CodeSignal(s syscall.Signal) int { return 128 + int(s) }

// CodeMeaning is one line of the exit code table as people read it.
type CodeMeaning struct {
	Code    string // a number, or "128+n"
	Meaning string
}

// CodeTable returns the exit codes for manual pages and help, in rising order.
func CodeTable() []CodeMeaning {
	return []CodeMeaning{
		{"0", "Done."},
		{"2", "The command line is wrong."},
		{"13", "The controller does not answer."},
		{"125", "Gangway could not do it."},
		{"126", "The command was found and cannot be executed."},
		{"127", "The command was not found."},
		{"128+n", "Killed by signal n; 130 is an interrupt from the keyboard."},
		{"other", "The exit code of the command that was run."},
	}
}

// Code is the exit code for err: CodeOK for nil, that of an Exit, the outermost code
// set by an Error in its chain, else CodeFailed.
func Code(err error) int {
	if err == nil {
		return CodeOK
	}
	if exit, ok := errors.AsType[Exit](err); ok {
		return int(exit)
	}
	if c := merge(err).Code; c != 0 {
		return c
	}
	return CodeFailed
}
