package registry

import "strings"

// challenge is one way to authenticate that a server offers (RFC 9110, section 11).
type challenge struct {
	scheme string            // lower case: basic, bearer
	params map[string]string // names in lower case
}

const (
	maxChallenges = 16
	maxChallenge  = 16 << 10 // bytes of one header
)

// parseChallenges reads the values of WWW-Authenticate. A value holds challenges and
// each of those parameters, both separated by commas; what cannot be read ends its
// value.
func parseChallenges(values []string) []challenge {
	var all []challenge
	for _, v := range values {
		all = append(all, (&scanner{v[:min(len(v), maxChallenge)]}).challenges()...)
	}
	return all[:min(len(all), maxChallenges)]
}

// scanner eats a header from its begin.
type scanner struct{ rest string }

func (s *scanner) challenges() []challenge {
	var all []challenge
	for len(all) <= maxChallenges {
		s.skip(" \t,")
		word := s.token()
		if word == "" {
			break
		}
		s.skip(" \t")
		if len(all) == 0 || !s.accept('=') {
			all = append(all, challenge{strings.ToLower(word), map[string]string{}})
			continue
		}
		s.skip(" \t")
		params, name := all[len(all)-1].params, strings.ToLower(word)
		value := s.value()
		if _, twice := params[name]; !twice {
			params[name] = value
		}
	}
	return all
}

func (s *scanner) skip(set string) { s.rest = strings.TrimLeft(s.rest, set) }

func (s *scanner) accept(c byte) bool {
	if s.rest == "" || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// token eats a token, which may be empty.
func (s *scanner) token() string {
	n := strings.IndexFunc(s.rest, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c)
	})
	return s.cut(n)
}

// value eats a quoted string or what stands before the next comma or blank: servers
// forget quotes around URLs.
func (s *scanner) value() string {
	if !s.accept('"') {
		return s.cut(strings.IndexAny(s.rest, ", \t"))
	}
	var b strings.Builder
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case c == '"':
			s.rest = s.rest[i+1:]
			return b.String()
		case c == '\\' && i+1 < len(s.rest):
			i++
			b.WriteByte(s.rest[i])
		default:
			b.WriteByte(c)
		}
	}
	s.rest = ""
	return b.String()
}

// cut eats n bytes, or all if n is negative.
func (s *scanner) cut(n int) string {
	if n < 0 {
		n = len(s.rest)
	}
	word := s.rest[:n]
	s.rest = s.rest[n:]
	return word
}
