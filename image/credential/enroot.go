package credential

import (
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
}

// inEnroot looks into Enroot's .credentials, which has curl's netrc syntax.
func inEnroot(_ context.Context, p place, raw []byte, q query) (Credential, error) {
	m, ok := chooseMachine(parseNetrc(string(raw)), q)
	if !ok {
		return Credential{}, nil
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
			return m.host == host && m.password != "" && (q.user == "" || m.login == q.user)
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
func parseNetrc(text string) []machine {
	var all []machine
	s := netrcScanner{text: text, line: 1}
	for {
		word, ok := s.next()
		if !ok {
			return all
		}
		switch word {
		case "machine":
			if host, ok := s.next(); ok && host != "" {
				all = append(all, machine{host: strings.ToLower(host)})
			}
		case "default":
			all = append(all, machine{})
		case "macdef":
			s.skipMacro()
		case "login", "password", "account":
			shell := word == "password" && s.atShell()
			value, ok := s.next()
			if shell { // may hold blanks
				s.skipLine()
			}
			if len(all) == 0 || !ok {
				continue
			}
			m := &all[len(all)-1]
			switch word {
			case "login":
				m.login = value
			case "password":
				m.password, m.line, m.shell = value, s.last, shell
			}
		}
	}
}

// netrcScanner cuts a netrc file into words.
type netrcScanner struct {
	text string
	at   int
	line int  // at
	last int  // the line of the last word
	mid  bool // a word stands before at in its line
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
	s.last, s.mid = s.line, true
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

func (s *netrcScanner) quoted() string {
	var b strings.Builder
	for s.at++; s.at < len(s.text); s.at++ {
		c := s.text[s.at]
		switch {
		case c == '"':
			s.at++
			return b.String()
		case c == '\n':
			s.line++
		case c == '\\' && s.at+1 < len(s.text):
			s.at++
			c = s.text[s.at]
			if r := strings.IndexByte("nrt", c); r >= 0 {
				c = "\n\r\t"[r]
			}
		}
		b.WriteByte(c)
	}
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
