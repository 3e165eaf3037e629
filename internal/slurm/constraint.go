package slurm

import (
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// ParseConstraint reads --constraint: features with "&" or "," (all) and "|" (any), of
// which parentheses make one, [A|B] (all nodes the same one) and [A*2&B*4] (so many nodes
// have them).
func ParseConstraint(text string) (*job.Constraint, error) {
	p := constraintParser{text: text}
	c, ok := p.or(0)
	if !ok || p.at != len(text) {
		return nil, &SyntaxError{Key: "constraint", Value: text, Want: "features with & and |, as (a|b)&c, [a|b] or [a*2&b*4]"}
	}
	return c, nil
}

type constraintParser struct {
	text string
	at   int
}

// eat takes one of the signs, if it comes next.
func (p *constraintParser) eat(signs string) byte {
	if p.at < len(p.text) && strings.IndexByte(signs, p.text[p.at]) >= 0 {
		p.at++
		return p.text[p.at-1]
	}
	return 0
}

// deepest bounds parentheses in parentheses.
const deepest = 32

// or reads A|B...
func (p *constraintParser) or(depth int) (*job.Constraint, bool) {
	all, ok := p.list(depth, "|", p.and)
	if len(all) == 1 {
		return all[0], ok
	}
	return &job.Constraint{Or: all}, ok
}

// and reads A&B...
func (p *constraintParser) and(depth int) (*job.Constraint, bool) {
	all, ok := p.list(depth, "&,", p.atom)
	if len(all) == 1 {
		return all[0], ok
	}
	return &job.Constraint{And: all}, ok
}

// list reads what part reads, as long as one of the signs follows.
func (p *constraintParser) list(depth int, signs string, part func(int) (*job.Constraint, bool)) ([]*job.Constraint, bool) {
	var all []*job.Constraint
	for {
		one, ok := part(depth)
		all = append(all, one)
		if !ok || p.eat(signs) == 0 {
			return all, ok
		}
	}
}

func (p *constraintParser) atom(depth int) (*job.Constraint, bool) {
	if depth > deepest {
		return nil, false
	}
	switch p.eat("([") {
	case '(':
		c, ok := p.or(depth + 1)
		return c, ok && p.eat(")") != 0
	case '[':
		c, ok := p.or(depth + 1)
		ok = ok && p.eat("]") != 0
		if ok && c.Or != nil {
			c = &job.Constraint{OneOf: c.Or}
		}
		return c, ok
	}
	end := p.at
	for end < len(p.text) && strings.IndexByte("()[]&|,* ", p.text[end]) < 0 {
		end++
	}
	c := &job.Constraint{Feature: p.text[p.at:end]}
	p.at = end
	if p.eat("*") != 0 {
		digits := p.text[p.at:]
		digits = digits[:len(digits)-len(strings.TrimLeft(digits, "0123456789"))]
		n, err := strconv.ParseUint(digits, 10, 31)
		if err != nil || n == 0 {
			return nil, false
		}
		c.Count = int(n)
		p.at += len(digits)
	}
	return c, c.Feature != ""
}
