package slurm

import (
	"bytes"
	"fmt"
	"strings"
)

// directive begins a line of options in a script.
const directive = "#SBATCH"

// directives sets what the lines of a script say that begin with #SBATCH, up to the first
// command.
func (o *Options) directives(table []option, script []byte) error {
	words, err := ScriptOptions(o.scriptName(), script)
	if err != nil {
		return err
	}
	given, operands, err := Getopt(flagsOf(table), words, true)
	if err != nil {
		return err
	}
	if len(operands) > 0 && (operands[0] == "hetjob" || operands[0] == "packjob") {
		return refuse(1, "%s %s: heterogeneous jobs are not supported by Gangway yet", directive, operands[0])
	}
	if len(operands) > 0 {
		return refuse(badOption, "Invalid directive found in batch script: %s", operands[0])
	}
	for _, g := range given {
		if err := o.apply(&table[g.Flag], value{text: g.Value, bare: g.Bare, from: fromScript}); err != nil {
			return err
		}
	}
	for _, word := range []string{"#PBS", "#BSUB"} {
		if !o.ignorePBS && hasDirective(script, word) {
			o.warn("lines with %s are not read by Gangway; write them as %s, or give --ignore-pbs", word, directive)
		}
	}
	return nil
}

func (o *Options) scriptName() string {
	if len(o.Operands) > 0 {
		return o.Operands[0]
	}
	return "stdin"
}

// ScriptOptions splits the directives of a script into words. Quotes hold words together,
// a backslash is for the sign behind it, unless that is a space, and "#" begins a comment,
// also within a word: as Slurm has it.
// But an empty word is one, after which Slurm forgets the rest of the line.
func ScriptOptions(name string, script []byte) (words []string, err error) {
	number := 0
	for line := range bytes.Lines(script) {
		number++
		text := strings.TrimRight(string(line), "\n")
		rest, ok := strings.CutPrefix(text, directive)
		if !ok {
			if begin := strings.TrimLeft(text, " \t\r\v\f"); begin != "" && begin[0] != '#' {
				break // the first command
			}
			continue
		}
		for {
			word, after, more, wrong := nextWord(rest)
			if wrong != "" {
				return nil, fatal("%s: line %d: %s in [%s]", name, number, wrong, strings.TrimLeft(rest, spaces))
			}
			if !more {
				break
			}
			words, rest = append(words, word), after
		}
	}
	return words, nil
}

// spaces are what isspace(3) says are, within a line.
const spaces = " \t\r\v\f"

// nextWord reads a word of a directive; more is false where there is none left, and wrong
// what is wrong.
func nextWord(line string) (word, rest string, more bool, wrong string) {
	line = strings.TrimLeft(line, spaces)
	if line == "" {
		return "", "", false, ""
	}
	if line[0] == ':' {
		return "", "", false, "Unexpected `:`"
	}
	var b strings.Builder
	var quote byte
	escaped := false
	i := 0
	for ; i < len(line) && (quote != 0 || strings.IndexByte(spaces, line[i]) < 0); i++ {
		switch c := line[i]; {
		case escaped:
			escaped = false
			b.WriteByte(c)
		case c == '\\':
			escaped = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && c == '#':
			return b.String(), "", b.Len() > 0, ""
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", "", false, fmt.Sprintf("Unmatched `%c`", quote)
	}
	return b.String(), line[i:], true, ""
}

func hasDirective(script []byte, word string) bool {
	for line := range bytes.Lines(script) {
		if bytes.HasPrefix(line, []byte(word+" ")) {
			return true
		}
		if begin := bytes.TrimSpace(line); len(begin) > 0 && begin[0] != '#' {
			return false
		}
	}
	return false
}

// CheckScript refuses what cannot be a batch script, in Slurm's words.
func CheckScript(script []byte) error {
	say := func(lines ...string) error {
		for i := range lines {
			lines[i] = "error: " + lines[i]
		}
		return &Refusal{Lines: lines, Code: 1}
	}
	switch {
	case len(script) == 0:
		return say("Batch script is empty!")
	case len(bytes.TrimLeft(script[:textEnd(script)], " \t\r\n\v\f")) == 0:
		return say("Batch script contains only whitespace!")
	case !bytes.HasPrefix(script, []byte("#!")):
		return say("This does not look like a batch script.  The first", "line must start with #! followed by the path to an interpreter.", "For instance: #!/bin/sh")
	case bytes.IndexByte(script, 0) >= 0:
		return say("The Slurm controller does not allow scripts that", "contain a NULL character '\\0'.")
	case bytes.Contains(script, []byte("\r\n")):
		return say(`Batch script contains DOS line breaks (\r\n)`, `instead of expected UNIX line breaks (\n).`)
	}
	return nil
}

// textEnd is where the first NUL is, if there is any.
func textEnd(script []byte) int {
	if i := bytes.IndexByte(script, 0); i >= 0 {
		return i
	}
	return len(script)
}
