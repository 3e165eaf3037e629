package slurm

import (
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

const wantGRES = "NAME[:TYPE][:COUNT] and commas, as gpu:h100:8 (COUNT is a whole number)"

// gresItem is one item of a list of generic resources.
type gresItem struct {
	name, kind string
	count      int64
	sockets    []int // that it is near to; nil: not said
	shared     bool  // no_consume
}

// ParseGRES reads what a node line has in Gres=: "gpu:h100:8(S:0-1),mps:400".
func ParseGRES(text string) ([]job.GRES, error) {
	items, err := parseGRES(text)
	if err != nil {
		return nil, err
	}
	var all []job.GRES
	for _, item := range items {
		g := job.GRES{Name: item.name, Type: item.kind, Count: item.count}
		if len(item.sockets) == 1 && item.count <= 64 {
			g.Sockets = make([]int, item.count)
			for i := range g.Sockets {
				g.Sockets[i] = item.sockets[0]
			}
		}
		all = append(all, g)
	}
	return all, nil
}

// ParseGRESRequest reads what --gres, --gpus and their like have; name is given for
// options that have only [TYPE:]COUNT, as "gpu" for --gpus, else it is empty.
func ParseGRESRequest(text, name string, per job.Unit) ([]job.GRESRequest, error) {
	if name != "" {
		parts := splitList(text)
		for i, part := range parts {
			parts[i] = name + ":" + part
		}
		text = strings.Join(parts, ",")
	}
	items, err := parseGRES(text)
	if err != nil {
		return nil, err
	}
	var all []job.GRESRequest
	for _, item := range items {
		all = append(all, job.GRESRequest{Name: item.name, Type: item.kind, Count: item.count, Per: per})
	}
	return all, nil
}

func parseGRES(text string) ([]gresItem, error) {
	switch strings.ToLower(text) {
	case "", "none", "(null)":
		return nil, nil
	}
	var items []gresItem
	for _, word := range splitList(text) {
		item, ok := parseGRESItem(word)
		if !ok {
			return nil, &SyntaxError{Key: "gres", Value: word, Want: wantGRES}
		}
		items = append(items, item)
	}
	return items, nil
}

func parseGRESItem(word string) (item gresItem, ok bool) {
	word, near, hasNear := strings.Cut(strings.TrimPrefix(word, "gres/"), "(")
	if hasNear {
		near, ok = strings.CutSuffix(near, ")")
		if near, isSocket := strings.CutPrefix(near, "S:"); isSocket && ok {
			if item.sockets, ok = parseIndexes(near, 1024); !ok {
				return item, false
			}
		}
		if !ok {
			return item, false
		}
	}
	parts := strings.Split(word, ":")
	if item.name = parts[0]; !isWord(item.name) {
		return item, false
	}
	item.count = 1
	parts = parts[1:]
	if n := len(parts); n > 0 {
		if count, err := parseCount(parts[n-1]); err == nil {
			item.count, parts = count, parts[:n-1]
		} else if strings.ContainsAny(parts[n-1][:min(1, len(parts[n-1]))], "0123456789-.") && !isProfile(parts[n-1]) {
			return item, false // a count that is none
		}
	}
	if n := len(parts); n > 0 && strings.EqualFold(parts[n-1], "no_consume") {
		item.shared, parts = true, parts[:n-1]
	}
	if len(parts) > 1 {
		return item, false
	}
	if len(parts) == 1 {
		item.kind = parts[0]
		ok = isWord(item.kind)
		return item, ok
	}
	return item, true
}

// isProfile says whether a word is a type that begins with a digit, as 1g.10gb: those of
// MIG have letters.
func isProfile(word string) bool {
	return isWord(word) && strings.ContainsAny(word, "abcdefghijklmnopqrstuvwxyz") && strings.Contains(word, "g.")
}

func isWord(text string) bool {
	for _, c := range []byte(text) {
		if !isKey(c) && c != '-' && c != '+' && c != '/' {
			return false
		}
	}
	return text != ""
}

// parseIndexes reads "0-3,7" or "[0-3]": numbers below limit.
func parseIndexes(text string, limit uint64) ([]int, bool) {
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		text = text[1 : len(text)-1]
	}
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		r, err := parseRange(part)
		if err != nil || r.last >= limit || len(all)+int(r.last-r.first) >= maxRange {
			return nil, false
		}
		for n := r.first; n <= r.last; n++ {
			all = append(all, int(n))
		}
	}
	return all, true
}

// TRES is a list of trackable resources, as sacct prints it.
type TRES struct {
	CPUs, Nodes int64
	Memory      int64 // MiB
	GRES        []job.GRESRequest
}

// GPUs is how many of the generic resource gpu there are, of all types.
func (t TRES) GPUs() int64 {
	typed, total := int64(0), int64(0)
	for _, g := range t.GRES {
		if g.Name == "gpu" && g.Type == "" {
			total += g.Count
		} else if g.Name == "gpu" {
			typed += g.Count
		}
	}
	return max(typed, total) // those with a type are counted without one, too
}

// ParseTRES reads "billing=8,cpu=128,gres/gpu:h100=8,gres/gpu=8,mem=900G,node=1". What it
// does not know it leaves out.
func ParseTRES(text string) (TRES, error) {
	var t TRES
	for _, word := range splitList(text) {
		bad := &SyntaxError{Key: "tres", Value: word, Want: "NAME=NUMBER, as cpu=4, mem=16G or gres/gpu=2"}
		name, value, found := strings.Cut(word, "=")
		if !found {
			return TRES{}, bad
		}
		var err error
		switch {
		case name == "cpu":
			t.CPUs, err = parseCount(value)
		case name == "node":
			t.Nodes, err = parseCount(value)
		case name == "mem":
			t.Memory, err = parseTRESMemory(value)
		case strings.HasPrefix(name, "gres/"):
			g := job.GRESRequest{}
			g.Name, g.Type, _ = strings.Cut(name[len("gres/"):], ":")
			g.Count, err = parseCount(value)
			t.GRES = append(t.GRES, g)
		}
		if err != nil {
			return TRES{}, bad
		}
	}
	return t, nil
}

// parseTRESMemory reads memory, which sacct also prints with a fraction (1.50T). Without a
// unit it is MiB.
func parseTRESMemory(text string) (int64, error) {
	whole, fraction, found := strings.Cut(text, ".")
	if !found {
		return ParseSize(text)
	}
	digits := strings.TrimRight(fraction, "KMGTBkmgtb")
	unit := fraction[len(digits):]
	a, err := ParseSize(whole + unit)
	if err != nil {
		return 0, err
	}
	f, err := parseNumber(digits)
	if err != nil {
		return 0, err
	}
	one, err := ParseSize("1" + unit)
	if err != nil || len(digits) > 6 {
		return 0, strconvSyntax(text)
	}
	scale := int64(1)
	for range digits {
		scale *= 10
	}
	return a + int64(f)*one/scale, nil
}

func strconvSyntax(text string) error { return &SyntaxError{Key: "size", Value: text, Want: wantSize} }
