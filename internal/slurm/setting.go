package slurm

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// section is a file, or a kind of line of one, that has keys of its own.
type section string

// The sections, as messages name them.
const (
	slurmConf     section = "slurm.conf"
	nodeLine      section = "a line of nodes"
	partitionLine section = "a line of a partition"
	downLine      section = "a line of DownNodes"
	setLine       section = "a line of a NodeSet"
	gresConf      section = "gres.conf"
	topologyConf  section = "topology.conf"
	cgroupConf    section = "cgroup.conf"
)

// fate is what becomes of a setting.
type fate uint8

// The fates.
const (
	acts    fate = iota // it does what it does in Slurm
	decides             // Slurm schedules by it, and nothing here does: whoever uses the files is told
	differs             // something else is done here
	nothing             // it means nothing here
)

// rule is what becomes of some keys.
type rule struct {
	fate   fate
	keys   string // separated by spaces
	why    string // what is done here instead, or why nothing is lost
	remedy string // what to do; empty: leave it out
	same   string // values, in lower case, by which Slurm does what is done here
}

// ruling is a rule for one key.
type ruling struct {
	*rule
	key  string // as manual pages write it
	kind kind
}

// kind is what values a key has.
type kind uint8

// The kinds. Of numbers Slurm takes UNLIMITED and INFINITE, too.
const (
	anyText kind = iota
	number16
	number32
	number64
	yesNo
	percent // of memory, with a fraction
)

const notYet = "it is not supported yet: jobs are scheduled without it"

// rulesOf are the rules of a section by key, in lower case.
func rulesOf(s section) map[string]ruling {
	all := map[string]ruling{}
	list := rules(s)
	for i := range list {
		for key := range strings.FieldsSeq(list[i].keys) {
			all[strings.ToLower(key)] = ruling{rule: &list[i], key: key}
		}
	}
	for kind, keys := range kinds(s) {
		for key := range strings.FieldsSeq(keys) {
			one := all[strings.ToLower(key)]
			one.kind = kind
			all[strings.ToLower(key)] = one
		}
	}
	return all
}

// rules are those of a section: what becomes of every key of Slurm's manual pages.
func rules(s section) []rule {
	switch s {
	case slurmConf:
		return slices.Concat(rulesThatAct(), rulesOfScheduling(), rulesOfDaemons(), rulesOfSteps(), rulesOfOldAndNew())
	case nodeLine:
		return rulesOfNodes()
	case partitionLine:
		return rulesOfPartitions()
	case gresConf:
		return rulesOfGRES()
	case cgroupConf:
		return rulesOfCgroups()
	case downLine:
		return []rule{{fate: acts, keys: "DownNodes Reason State"}}
	case setLine:
		return []rule{{fate: acts, keys: "NodeSet Feature Nodes"}}
	}
	return rulesOfTopology()
}

func (r *reader) rulesOf(s section) map[string]ruling {
	if r.rules[s] == nil {
		r.rules[s] = rulesOf(s)
	}
	return r.rules[s]
}

func (r *reader) rule(s section, key string) (ruling, bool) {
	one, ok := r.rulesOf(s)[strings.ToLower(key)]
	return one, ok
}

// follow says what becomes of a key that nothing else reads.
func (r *reader) follow(l line, p pair, s section) {
	one, ok := r.rule(s, p.key)
	if !ok {
		r.unknown(l, p, s)
		return
	}
	r.ignore(l, p)
	if why := one.kind.refuses(p.value); why != "" {
		r.say(l, SeverityError, p, "want "+why, "mend it, or leave it out; Slurm does not start with it")
		return
	}
	r.words(l, p, s)
	same := slices.Contains(strings.Fields(one.same), strings.ToLower(p.value))
	remedy := one.remedy
	if remedy == "" {
		remedy = "leave it out"
	}
	switch {
	case one.fate == nothing:
		r.add(l, Finding{Severity: SeverityNote, Key: p.key, Value: p.value, Text: one.why})
	case same:
		r.add(l, Finding{Severity: SeverityNote, Key: p.key, Value: p.value, Text: "it is so here anyway"})
	case one.fate == decides:
		r.warn(l, p, remedy, "%s", one.why)
	case one.fate == differs:
		r.add(l, Finding{Severity: SeverityWarning, Key: p.key, Value: p.value, Text: one.why, Remedy: remedy})
	}
}

// unknown says of a key that nobody has it, and which one may be meant.
func (r *reader) unknown(l line, p pair, s section) {
	r.ignore(l, p)
	var names []string
	lower := map[string]string{}
	for name, one := range r.rulesOf(s) {
		names = append(names, name)
		lower[name] = one.key
	}
	slices.Sort(names)
	near := fault.Nearest(strings.ToLower(p.key), names)
	for i, name := range near {
		near[i] = lower[name]
	}
	remedy := "leave it out"
	if len(near) > 0 && len(near) <= 4 {
		remedy = "did you mean " + strings.Join(near, " or ") + "?"
	}
	r.warn(l, p, remedy, "unknown in %s: it is passed over, and Slurm does not start with it", s)
}

// refuses says what is valid, if a value is not; empty if it is.
func (k kind) refuses(value string) string {
	bits := 64
	switch k {
	case anyText:
		return ""
	case percent:
		if f, err := strconv.ParseFloat(value, 64); err != nil || !(f >= 0 && f <= 1<<20) {
			return "a percentage from 0, as 100 or 95.5"
		}
		return ""
	case yesNo:
		if !isOneOf(value, "yes no up down true false 1 0") {
			return "YES or NO"
		}
		return ""
	case number16:
		bits = 16
	case number32:
		bits = 32
	}
	if isOneOf(value, "UNLIMITED INFINITE") {
		return ""
	}
	if _, ok := slurmNumber(value, bits); !ok {
		return "a whole number from 0 to " + strconv.FormatUint(^uint64(0)>>(64-bits), 10) + ", or UNLIMITED"
	}
	return ""
}

// words looks at values that are of a set, each of a list where it is one.
func (r *reader) words(l line, p pair, s section) {
	for _, c := range choices(s) {
		if !strings.EqualFold(c.key, p.key) {
			continue
		}
		list := []string{p.value}
		if c.several {
			list = strings.FieldsFunc(p.value, func(c rune) bool { return c == ',' || c == ' ' })
		}
		for _, word := range list {
			word, _, _ = strings.Cut(word, "=")
			if !isOneOf(strings.TrimPrefix(strings.ToLower(word), c.prefix), c.words) {
				r.unknownWord(l, p, word, c.words)
			}
		}
	}
}

// unknownWord says of a word of a value that nobody has it, and which one may be meant.
func (r *reader) unknownWord(l line, p pair, word, known string) {
	near := fault.Nearest(strings.ToLower(word), strings.Fields(strings.ToLower(known)))
	remedy := "leave " + word + " out; valid are " + strings.ReplaceAll(known, " ", ", ")
	for i, name := range near {
		for written := range strings.FieldsSeq(known) {
			if strings.EqualFold(written, name) {
				near[i] = written
			}
		}
	}
	if len(near) > 0 && len(near) <= 4 {
		remedy = "did you mean " + strings.Join(near, " or ") + "?"
	}
	r.cannot(l, pair{p.key, word}, remedy, "nobody knows %s: it does nothing", quoted(word))
}
