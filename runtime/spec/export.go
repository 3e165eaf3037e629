package spec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Export says which of the caller's environment enters, as Slurm's --export does.
// SLURM_* and SPANK_* enter always.
type Export struct {
	All   bool
	Names []string    // the caller's value, where there is one
	Set   [][2]string // name and value
}

// ParseExport reads --export: ALL, NONE, NIL, or a list, separated by commas, of
// NAME and NAME=VALUE, and ALL among them. Quotes, single or double, keep commas
// from ending a value; where they enclose all of it they are not part of it.
// Nothing is ALL.
func ParseExport(s string) (Export, error) {
	var e Export
	bad := func(hint, format string, args ...any) (Export, error) {
		return Export{}, fault.Usage(fmt.Errorf("export %q: %w", shorten(s), fmt.Errorf(format, args...)), hint)
	}
	switch strings.ToUpper(s) {
	case "", "ALL":
		return Export{All: true}, nil
	case "NONE", "NIL":
		return e, nil
	}
	words, err := splitQuoted(s)
	if err != nil {
		return bad("end the quotes, or put a quote that is part of a value into the other kind of quotes", "%w", err)
	}
	for _, word := range words {
		name, value, assigned := strings.Cut(word, "=")
		if assigned {
			value = unquote(value)
		} else {
			name = unquote(name)
		}
		switch upper := strings.ToUpper(name); {
		case name == "":
			return bad("write ALL, NONE or NAME=VALUE,NAME", "a name is empty")
		case !exportable(name):
			return bad("write ALL, NONE or NAME=VALUE,NAME; a value with a comma in it goes in quotes", "%q is not the name of a variable", shorten(name))
		case strings.ContainsRune(word, 0):
			return bad("remove it", "it contains a NUL")
		case assigned:
			e.Set = append(e.Set, [2]string{name, value})
		case upper == "ALL":
			e.All = true
		case upper == "NONE", upper == "NIL":
			return bad("a list of names without ALL exports these alone", "%s stands among others", name)
		default:
			e.Names = append(e.Names, name)
		}
	}
	return e, nil
}

// exportable says whether name can be that of a variable: letters, digits and
// underscores, and what shells put into the names of functions that they export.
func exportable(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	return strings.Trim(name, letters+"0123456789.-%()") == "" && strings.Contains(letters, name[:1])
}

// splitQuoted splits s at commas outside of quotes.
func splitQuoted(s string) ([]string, error) {
	var words []string
	var quote byte
	start := 0
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == ',':
			words = append(words, s[start:i])
			start = i + 1
		}
	}
	if quote != 0 {
		return nil, errors.New("quotes do not end")
	}
	return append(words, s[start:]), nil
}

// unquote removes the quotes that enclose all of s.
func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// slurms says whether a variable enters whatever --export says.
func slurms(name string) bool {
	return strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "SPANK_") || strings.HasPrefix(name, "_SLURM_SPANK_")
}
