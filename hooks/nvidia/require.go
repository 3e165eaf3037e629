package nvidia

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Facts are what an image may require something of; "" is not known.
type Facts struct {
	CUDA   string // newest CUDA that the driver runs: "13.0"
	Driver string // "580.95.05"
	Arch   string // compute capability of the GPUs: "9.0"
	Brand  string // NVML's word: "nvidia", "tesla", "geforce", ...
}

// maxRequire is how long one requirement may be; CUDA images have up to 1 KB.
const maxRequire = 64 << 10

// Require evaluates NVIDIA_REQUIRE_* of an image's environment ("NAME=value"
// entries). A value lists alternatives separated by spaces, each of them conditions
// separated by commas: "cuda>=12.4 brand=tesla,driver>=535,driver<536". All variables
// have to be met. NVIDIA_DISABLE_REQUIRE=true switches that off.
//
// A condition about something that is not known counts as met, and is returned in
// unverified. The error says what is required and what there is. A value that cannot
// be read is an error too: an image that asks for something should not run without.
func Require(env []string, f Facts) (unverified []string, err error) {
	for _, entry := range env {
		if name, value, _ := strings.Cut(entry, "="); name == "NVIDIA_DISABLE_REQUIRE" && (value == "true" || value == "1") {
			return nil, nil
		}
	}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		// JETPACK's are switches of another tool.
		if !strings.HasPrefix(name, "NVIDIA_REQUIRE_") || strings.HasPrefix(name, "NVIDIA_REQUIRE_JETPACK") || strings.TrimSpace(value) == "" {
			continue
		}
		open, err := f.evaluate(name, value)
		if err != nil {
			return nil, err
		}
		unverified = append(unverified, open...)
	}
	return unverified, nil
}

// verdict is the outcome of a condition.
type verdict int

const (
	unmet verdict = iota
	unknown
	met
)

// evaluate looks for the best alternative of one variable.
func (f Facts) evaluate(name, value string) (unverified []string, err error) {
	if len(value) > maxRequire {
		return nil, fmt.Errorf("read %s: %d bytes, more than %d", name, len(value), maxRequire)
	}
	best := unmet
	for alternative := range strings.FieldsSeq(value) {
		all, open := met, []string(nil)
		for text := range strings.SplitSeq(alternative, ",") {
			c, err := parseCondition(text)
			if err != nil {
				return nil, &fault.Error{
					What: fmt.Errorf("read %s of the image: %w", name, err), Hint: "conditions are such as cuda>=12.4, driver<536, arch>=9.0, brand=tesla; to run without the check: NVIDIA_DISABLE_REQUIRE=true",
				}
			}
			v := f.holds(c)
			all = min(all, v)
			if v == unknown {
				open = append(open, text)
			}
		}
		if all > best {
			best, unverified = all, open
		}
	}
	if best == unmet {
		return nil, f.refuse(name, value)
	}
	return unverified, nil
}

func (f Facts) refuse(name, value string) error {
	alternatives := strings.Fields(value)
	shown := alternatives[:min(3, len(alternatives))]
	text := strings.ReplaceAll(strings.Join(shown, ", or "), ",driver", " with driver")
	if more := len(alternatives) - len(shown); more > 0 {
		text += fmt.Sprintf(", or one of %d more", more)
	}
	known := func(s string) string { return cmp.Or(s, "not known") }
	return &fault.Error{
		What: fmt.Errorf("check what the image requires: %s is not met", name),
		Cause: fmt.Sprintf("it requires %s; here cuda is %s, driver %s, arch %s, brand %s",
			text, known(f.CUDA), known(f.Driver), known(f.Arch), known(f.Brand)),
		Hint: "take an image for an older CUDA, or update the driver; to run without the check: --env NVIDIA_DISABLE_REQUIRE=true",
	}
}

// condition is "property operator value".
type condition struct{ property, operator, value string }

// operators, longer ones first.
var operators = []string{">=", "<=", "!=", "==", "=", ">", "<"}

func parseCondition(text string) (condition, error) {
	at := strings.IndexAny(text, "<>=!")
	if at > 0 {
		for _, op := range operators {
			if value, ok := strings.CutPrefix(text[at:], op); ok && value != "" && !strings.ContainsAny(value, "<>=!") {
				return condition{text[:at], op, value}, nil
			}
		}
	}
	return condition{}, fmt.Errorf("%q is no condition", text)
}

// holds evaluates a condition. A property that is not one of ours is not known.
func (f Facts) holds(c condition) verdict {
	is := func(ok bool) verdict {
		if ok {
			return met
		}
		return unmet
	}
	var fact string
	switch c.property {
	case "cuda":
		fact = f.CUDA
	case "driver":
		fact = f.Driver
	case "arch":
		fact = f.Arch
	case "brand":
		if f.Brand == "" {
			return unknown
		}
		switch c.operator {
		case "=", "==":
			return is(f.Brand == c.value)
		case "!=":
			return is(f.Brand != c.value)
		}
		return unknown
	}
	if fact == "" {
		return unknown
	}
	n, ok := compareVersions(fact, c.value)
	if !ok {
		return unknown
	}
	switch c.operator {
	case ">=":
		return is(n >= 0)
	case "<=":
		return is(n <= 0)
	case ">":
		return is(n > 0)
	case "<":
		return is(n < 0)
	case "!=":
		return is(n != 0)
	}
	return is(n == 0)
}

// compareVersions compares "12.4" and "12.10.1" by number; a part that is not there
// is 0.
func compareVersions(a, b string) (int, bool) {
	x, okA := versionParts(a)
	y, okB := versionParts(b)
	for len(x) < len(y) {
		x = append(x, 0)
	}
	for len(y) < len(x) {
		y = append(y, 0)
	}
	return slices.Compare(x, y), okA && okB
}

func versionParts(s string) ([]uint64, bool) {
	var all []uint64
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return nil, false
		}
		all = append(all, n)
	}
	return all, len(all) <= 8
}
