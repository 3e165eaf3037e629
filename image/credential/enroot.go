package credential

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// machine is an entry of a netrc file.
type machine struct {
	host            string // "" is default
	login, password string
	line            int  // of the password
	shell           bool // the password is code for a shell

	hasLogin, hasPassword bool
	wrong                 string // what makes it unusable, if so
	wrongLine             int
}

// inEnroot looks into Enroot's .credentials, which has curl's netrc syntax.
func inEnroot(_ context.Context, p place, raw []byte, q query) (Credential, error) {
	m, ok := chooseMachine(parseNetrc(string(raw)), q)
	if !ok {
		return Credential{}, nil
	}
	if m.wrong != "" && !m.shell {
		return Credential{}, &fault.Error{
			What: fmt.Errorf("read %s: line %d: %s, in the entry of %s", p.path, m.wrongLine, m.wrong, cmp.Or(m.host, "default")),
			Hint: `write: machine HOST login USER password PASSWORD, with a value that is a keyword such as "machine" in double quotes`,
		}
	}
	if m.shell {
		return Credential{}, &fault.Error{
			What: fmt.Errorf("read %s: line %d: the password begins with '$', which Enroot runs as code of a shell; Gangway runs nothing of it", p.path, m.line),
			Hint: "log in with docker login or podman login, or name a credential helper in ~/.docker/config.json",
		}
	}
	return Credential{Username: m.login, Password: m.password, Source: fmt.Sprintf("%s, line %d", p.path, m.line)}.normal(), nil
}

// chooseMachine returns the first entry for the host and user. The names of a host
// are tried one after another, the most exact first.
func chooseMachine(machines []machine, q query) (machine, bool) {
	for _, host := range netrcHosts(q.host) {
		i := slices.IndexFunc(machines, func(m machine) bool {
			return m.host == host && (m.password != "" || m.wrong != "") && (q.user == "" || m.login == q.user)
		})
		if i >= 0 {
			return machines[i], true
		}
	}
	return machine{}, false
}

// netrcHosts are the names that an entry for host may have. curl, which Enroot uses,
// looks for the host of the token server, so that files for Enroot have that.
func netrcHosts(host string) []string {
	names := []string{host}
	if host == dockerHub {
		names = append(names, "registry-1.docker.io", "index.docker.io", "auth.docker.io")
	}
	if bare, _, err := net.SplitHostPort(host); err == nil {
		names = append(names, strings.ToLower(bare))
	}
	return append(names, "") // default
}

// parseNetrc reads a netrc file. What it does not know it passes over, as curl does.
// It takes no word of one entry for the value of another's: an entry that can be
// read in two ways is broken, and the next keyword in a line of its own goes on.
func parseNetrc(text string) []machine {
	var all []machine
	s := netrcScanner{text: text, line: 1}
	inside := false // of the last entry; a machine without a name is none
	for {
		word, ok := s.next()
		if !ok {
			return all
		}
		switch word = strings.ToLower(word); word {
		case "machine":
			host, wrong := s.value()
			if inside = host != ""; inside {
				all = append(all, machine{host: strings.ToLower(host)})
				all[len(all)-1].spoil(wrong, s.last)
			}
		case "default":
			all, inside = append(all, machine{}), true
		case "macdef":
			s.skipMacro()
		case "login", "password", "account":
			shell := word == "password" && s.atShell()
			value, wrong := s.value()
			if shell { // may hold blanks
				s.skipLine()
			}
			if !inside || word == "account" {
				continue
			}
			m := &all[len(all)-1]
			if wrong != "" {
				wrong = "the " + word + " " + wrong
			}
			m.spoil(wrong, s.last)
			m.set(word, value, s.last, shell)
		}
	}
}

// spoil notes the first thing that is wrong with an entry, if there is one.
func (m *machine) spoil(wrong string, line int) {
	if wrong != "" && m.wrong == "" {
		m.wrong, m.wrongLine = wrong, line
	}
}

// set keeps the first value. A second one may be of a machine whose keyword was
// taken for a value.
func (m *machine) set(word, value string, line int, shell bool) {
	switch {
	case word == "login" && m.hasLogin, word == "password" && m.hasPassword:
		m.spoil("there is a second "+word, line)
	case word == "login":
		m.login, m.hasLogin = value, true
	case word == "password":
		m.password, m.hasPassword, m.line, m.shell = value, true, line, shell
	}
}

func isNetrcKeyword(s string) bool {
	switch strings.ToLower(s) {
	case "machine", "default", "macdef", "login", "password", "account":
		return true
	}
	return false
}

// netrcScanner cuts a netrc file into words.
type netrcScanner struct {
	text string
	at   int
	line int  // at
	last int  // the line of the last word
	mid  bool // a word stands before at in its line
	// Of the last word: it is in double quotes, and they do not end in its line.
	quotes, open bool
}

// skipBlanks goes to the next word. A '#' begins a comment where it is first in its
// line; elsewhere it may begin a password.
func (s *netrcScanner) skipBlanks() {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case c == '\n':
			s.line++
			s.mid = false
		case c == ' ' || c == '\t' || c == '\r':
		case c == '#' && !s.mid:
			s.skipLine()
			continue
		default:
			return
		}
		s.at++
	}
}

// next returns the next word, which may be in double quotes.
func (s *netrcScanner) next() (string, bool) {
	s.skipBlanks()
	s.last, s.mid, s.quotes, s.open = s.line, true, false, false
	if s.at == len(s.text) {
		return "", false
	}
	if s.text[s.at] == '"' {
		return s.quoted(), true
	}
	begin := s.at
	for s.at < len(s.text) && !strings.ContainsRune(" \t\r\n", rune(s.text[s.at])) {
		s.at++
	}
	return s.text[begin:s.at], true
}

// value returns the word that belongs to the keyword before, and what is wrong if
// there is none. A keyword where the value should be is the value in the keyword's
// own line only, as in "password default".
func (s *netrcScanner) value() (word, wrong string) {
	const missing = "has no value"
	keyword, before := s.last, *s
	word, ok := s.next()
	switch {
	case !ok:
		return "", missing
	case s.open:
		return "", "begins with a double quote that is not closed in its line"
	case s.quotes || !isNetrcKeyword(word):
		return word, ""
	case s.last != keyword:
		*s = before
		return "", missing
	}
	if after := *s; strings.EqualFold(word, "machine") {
		if next, ok := after.next(); ok && after.last == keyword && !isNetrcKeyword(next) {
			return word, "has no value, or it is \"machine\""
		}
	}
	return word, ""
}

// quoted returns a word in double quotes, which like curl's end in its line.
func (s *netrcScanner) quoted() string {
	s.quotes = true
	var b strings.Builder
	for s.at++; s.at < len(s.text) && s.text[s.at] != '\n'; s.at++ {
		c := s.text[s.at]
		if c == '"' {
			s.at++
			return b.String()
		}
		if c == '\\' && s.at+1 < len(s.text) && s.text[s.at+1] != '\n' {
			s.at++
			c = s.text[s.at]
			if r := strings.IndexByte("nrt", c); r >= 0 {
				c = "\n\r\t"[r]
			}
		}
		b.WriteByte(c)
	}
	s.open = true
	return b.String()
}

// atShell says whether the next word is what Enroot would hand to a shell.
func (s *netrcScanner) atShell() bool {
	rest := strings.TrimLeft(s.text[s.at:], " \t\r\n\"'")
	return strings.HasPrefix(rest, "$")
}

func (s *netrcScanner) skipLine() {
	for s.at < len(s.text) && s.text[s.at] != '\n' {
		s.at++
	}
}

// skipMacro goes behind the empty line that ends a macro.
func (s *netrcScanner) skipMacro() {
	i := strings.Index(s.text[s.at:], "\n\n")
	if i < 0 {
		s.at = len(s.text)
		return
	}
	s.line += strings.Count(s.text[s.at:s.at+i+2], "\n")
	s.at += i + 2
	s.mid = false
}
