package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Limits of hostlists. Slurm's own of one range is the same.
const (
	maxRange  = 64 << 10
	maxHosts  = 1 << 20
	maxDigits = 18 // of a number that is counted up
)

// Expand returns the names that a hostlist stands for, in its order:
// "n[001-128,130],login" is n001, n002, ... and login. Brackets may come several in a
// name; the last one counts fastest. Names are separated by commas or spaces.
func Expand(list string) ([]string, error) {
	var all []string
	for _, word := range splitList(list) {
		names, err := expandWord(word, maxHosts-len(all))
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	return all, nil
}

// splitList splits at commas and spaces that are in no brackets.
func splitList(list string) []string {
	var words []string
	depth, begin := 0, 0
	for i := 0; i <= len(list); i++ {
		if i < len(list) {
			switch list[i] {
			case '[', '(':
				depth++
				continue
			case ']', ')':
				depth--
				continue
			case ',', ' ', '\t', '\n':
				if depth > 0 {
					continue
				}
			default:
				continue
			}
		}
		if i > begin {
			words = append(words, list[begin:i])
		}
		begin = i + 1
	}
	return words
}

// expandWord expands one name with its brackets to at most room names.
func expandWord(word string, room int) ([]string, error) {
	bad := func(want string) error { return &SyntaxError{Key: "hostlist", Value: word, Want: want} }
	names := []string{""}
	for rest := word; rest != ""; {
		plain, after, found := strings.Cut(rest, "[")
		if strings.Contains(plain, "]") {
			return nil, bad("a [ before each ]")
		}
		var parts []string
		if found {
			ranges, tail, closed := strings.Cut(after, "]")
			if !closed {
				return nil, bad("a ] after each [")
			}
			var err error
			if parts, err = expandRanges(ranges); err != nil {
				return nil, fmt.Errorf("hostlist %s: %w", quoted(word), err)
			}
			rest = tail
		} else {
			parts, rest = []string{""}, ""
		}
		if len(names)*len(parts) > room {
			return nil, bad(fmt.Sprintf("at most %d names", maxHosts))
		}
		longer := make([]string, 0, len(names)*len(parts))
		for _, name := range names {
			for _, part := range parts {
				longer = append(longer, name+plain+part)
			}
		}
		names = longer
	}
	return names, nil
}

// expandRanges expands what stands in brackets: "001-128,130".
func expandRanges(text string) ([]string, error) {
	var all []string
	for part := range strings.SplitSeq(text, ",") {
		r, err := parseRange(part)
		if err != nil {
			return nil, err
		}
		if len(all)+int(r.last-r.first) >= maxRange {
			return nil, &SyntaxError{Value: text, Want: fmt.Sprintf("at most %d numbers in brackets", maxRange)}
		}
		for n := r.first; n <= r.last; n++ {
			all = append(all, pad(n, r.width))
		}
	}
	return all, nil
}

// numbers is a range of numbers that are written with at least width digits.
type numbers struct {
	first, last uint64
	width       int
}

func parseRange(text string) (numbers, error) {
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	a, errA := parseNumber(first)
	b, errB := parseNumber(last)
	if errA != nil || errB != nil || b < a || b-a >= maxRange {
		return numbers{}, &SyntaxError{Value: text, Want: fmt.Sprintf("a number or FIRST-LAST, rising, of at most %d", maxRange)}
	}
	return numbers{a, b, len(first)}, nil
}

func parseNumber(text string) (uint64, error) {
	if text == "" || len(text) > maxDigits || strings.Trim(text, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(text, 10, 64)
}

func pad(n uint64, width int) string {
	digits := strconv.FormatUint(n, 10)
	if len(digits) < width {
		digits = strings.Repeat("0", width-len(digits)) + digits
	}
	return digits
}

// Fold writes names as a hostlist, in their order, as "scontrol show hostlist" does:
// n1, n2, n3, m1 is n[1-3],m1. See [SortHosts] for a shorter one.
func Fold(names []string) string {
	var b strings.Builder
	for i := 0; i < len(names); {
		prefix, digits := cutNumber(names[i])
		var ranges []string
		for i < len(names) {
			p, d := cutNumber(names[i])
			if d == "" || p != prefix {
				break
			}
			n, _ := parseNumber(d)
			last := n
			for i++; i < len(names) && names[i] == prefix+pad(last+1, len(d)); i++ {
				last++
			}
			if ranges = append(ranges, d); last > n {
				ranges[len(ranges)-1] += "-" + pad(last, len(d))
			}
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		switch {
		case digits == "":
			b.WriteString(names[i])
			i++
		case len(ranges) == 1 && !strings.Contains(ranges[0], "-"):
			b.WriteString(prefix + ranges[0])
		default:
			b.WriteString(prefix + "[" + strings.Join(ranges, ",") + "]")
		}
	}
	return b.String()
}

// cutNumber cuts the number off that a name ends in.
func cutNumber(name string) (prefix, digits string) {
	prefix = strings.TrimRight(name, "0123456789")
	if digits = name[len(prefix):]; len(digits) > maxDigits {
		return name, ""
	}
	return prefix, digits
}

// SortHosts sorts names as "scontrol show hostlistsorted" does: by what precedes the
// number (numbers within it by their value), by the number of digits, and by the number.
func SortHosts(names []string) {
	slices.SortFunc(names, func(a, b string) int {
		prefixA, digitsA := cutNumber(a)
		prefixB, digitsB := cutNumber(b)
		return cmp.Or(natural(prefixA, prefixB), cmp.Compare(len(digitsA), len(digitsB)), cmp.Compare(digitsA, digitsB))
	})
}

// natural compares texts, numbers within them by their value, but those with a leading
// zero digit by digit, as if they followed a decimal point.
func natural(a, b string) int {
	for a != "" && b != "" {
		digitsA, digitsB := leadingDigits(a), leadingDigits(b)
		if digitsA == "" || digitsB == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		if c := compareDigits(digitsA, digitsB); c != 0 {
			return c
		}
		a, b = a[len(digitsA):], b[len(digitsB):]
	}
	return cmp.Compare(len(a), len(b))
}

func compareDigits(a, b string) int {
	if a[0] == '0' || b[0] == '0' {
		return cmp.Compare(a, b)
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func leadingDigits(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}
