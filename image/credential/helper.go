package credential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"unicode"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

const (
	maxHelperOutput  = 64 << 10 // bytes
	maxHelperMessage = 300      // bytes of stderr that are kept
)

// isHelper says whether a helper is a name and not a path or an option.
func isHelper(name string) bool {
	return name != "" && len(name) <= 100 && !strings.ContainsFunc(name, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", c)
	})
}

// errTooLong ends a helper that writes without end.
var errTooLong = fmt.Errorf("it wrote more than %d bytes", maxHelperOutput)

// limited keeps what is written to it, up to a limit. It does not embed the buffer,
// whose ReadFrom would go round Write.
type limited struct {
	kept bytes.Buffer
	over bool
}

// Write fails with errTooLong behind the limit.
func (l *limited) Write(p []byte) (int, error) {
	if l.kept.Len()+len(p) > maxHelperOutput {
		l.over = true
		return 0, errTooLong
	}
	return l.kept.Write(p)
}

// brief keeps the begin of what is written to it, as a line for people.
type brief struct{ kept bytes.Buffer }

// Write never fails.
func (b *brief) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), maxHelperMessage-b.kept.Len())])
	return len(p), nil
}

func (b *brief) String() string {
	text := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(b.kept.String(), ""))
	return strings.Join(strings.Fields(text), " ")
}

// ask runs docker-credential-NAME get, which path names: the server on stdin, a JSON
// object on stdout (github.com/docker/docker-credential-helpers).
func (f *Finder) ask(ctx context.Context, name, path string, q query) (Credential, error) {
	program := "docker-credential-" + name
	fail := func(err error, hint string) (Credential, error) {
		return Credential{}, &fault.Error{What: fmt.Errorf("ask %.120s, which %s names: %w", program, path, err), Hint: hint}
	}
	if !isHelper(name) {
		return fail(errors.New("that is not the name of a program"), "mend credsStore and credHelpers in "+path)
	}
	server := q.host
	if server == dockerHub {
		server = hubServer
	}
	out, err := f.run(ctx, program, server)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fail(errors.New("there is no such program"), "install it, or take it out of "+path+" and log in again")
	case err != nil && saysNone(out):
		return Credential{}, nil
	case err != nil:
		return fail(err, fmt.Sprintf("try it by hand: echo %s | %s get", server, program))
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out, &answer) != nil { // whose text might quote the secret
		return fail(errors.New("its answer is not the JSON of a credential"), fmt.Sprintf("try it by hand: echo %s | %s get", server, program))
	}
	c := Credential{Username: answer.Username, Password: answer.Secret, Source: path + ", " + program}.normal()
	if c.Password == "" && c.IdentityToken == "" || !q.suits(c.Username) {
		return Credential{}, nil
	}
	return c, nil
}

// saysNone recognises the texts for "nothing known of this server".
func saysNone(out []byte) bool {
	return strings.Contains(string(out), "credentials not found") || strings.Contains(string(out), "no credentials server URL")
}

func (f *Finder) run(ctx context.Context, program, server string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("it did not answer within %s", f.timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	out := &limited{}
	stderr := &brief{}
	cmd.Stdout, cmd.Stderr = out, stderr
	proc.Confine(cmd)
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		// An agent that it started may hold its stdout for ever. Whether the answer is
		// whole is seen from the JSON.
		return out.kept.Bytes(), nil
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case out.over: // and err is the signal that ended the helper
		return nil, errTooLong
	}
	// What is on stdout is not repeated: that is where the secrets are.
	if text := stderr.String(); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return out.kept.Bytes(), err
}
