package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// dialTimeout is how long a connection may take, and answerTimeout the beginning of an
// answer to a request that does not wait for anything.
const (
	dialTimeout   = time.Second
	answerTimeout = 20 * time.Second
	dialPause     = 50 * time.Millisecond
)

// Client talks to one service: the controller, or an agent.
type Client struct {
	address string
	release string // of the program that asks
	dial    func(ctx context.Context) (net.Conn, error)
	http    *http.Client
	prefix  string // of paths, see way
	// patience is how long nobody may be there before that is an error.
	patience time.Duration
}

// Dial makes a Client for an address: unix:PATH or host:port, or node:NAME@ one of these for
// the agent of a node by way of who is there. It connects when the first
// request is made.
func Dial(address string) *Client {
	to, prefix := way(address)
	network, name := "tcp", to
	if path, ok := strings.CutPrefix(to, "unix:"); ok {
		network, name = "unix", path
	}
	c := &Client{address: address, prefix: prefix}
	dialer := net.Dialer{Timeout: dialTimeout}
	c.dial = func(ctx context.Context) (net.Conn, error) {
		for deadline := time.Now().Add(c.patience); ; {
			conn, err := dialer.DialContext(ctx, network, name)
			away := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
			if !away || time.Now().After(deadline) || ctx.Err() != nil {
				return conn, err
			}
			time.Sleep(dialPause) // nothing was sent yet
		}
	}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		// Requests of one command come one after the other, but for its streams.
		MaxIdleConnsPerHost: 4, DisableCompression: true,
	}}
	return c
}

// WaitFor makes the Client wait so long for somebody to listen where nobody does, and
// returns it: the programs of a job are not to fail because the controller starts again.
func (c *Client) WaitFor(patience time.Duration) *Client {
	c.patience = patience
	return c
}

// Of says of which release the program is that asks, and returns the Client.
func (c *Client) Of(release string) *Client {
	c.release = release
	return c
}

// Address is what the Client was made for.
func (c *Client) Address() string { return c.address }

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Unreachable is that nobody answers at an address.
type Unreachable struct {
	Address string
	Err     error
	Timeout bool // there was a connection, but no answer
}

// Error implements error.
func (e *Unreachable) Error() string {
	return fmt.Sprintf("contact controller at %s: %v", e.Address, e.Err)
}

// Unwrap is the error of the network.
func (e *Unreachable) Unwrap() error { return e.Err }

// unreachable makes an error of the network one for people.
func (c *Client) unreachable(err error) error {
	var op *net.OpError
	timeout := errors.Is(err, context.DeadlineExceeded)
	if errors.As(err, &op) {
		timeout = timeout || op.Timeout()
		err = op.Err // without the address again
	}
	if timeout {
		err = errors.New("no answer in time")
	}
	hint := "is it running? gangway up starts one here"
	if errors.Is(err, fs.ErrPermission) {
		hint = "somebody else's cluster is there; gangway up starts one of your own, and GANGWAY_CLUSTER says which one is meant"
	}
	return &fault.Error{What: &Unreachable{Address: c.address, Err: err, Timeout: timeout}, Hint: hint, Code: fault.CodeUnreachable}
}

// call sends in as JSON and reads the answer into out; nil is none. Where wait is false
// the answer has to begin soon.
func (c *Client) call(ctx context.Context, method, path string, in, out any, wait bool) error {
	if !wait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTimeout)
		defer cancel()
	}
	resp, err := c.do(ctx, method, path, in, "")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", c.address, c.orContext(ctx, err))
	}
	return nil
}

// orContext is what ended ctx, or else err as one of the network.
func (c *Client) orContext(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return context.Canceled
	}
	return c.unreachable(err)
}

// do sends a request. An answer that is a refusal comes back as an *[Error] in a fault.
func (c *Client) do(ctx context.Context, method, path string, in any, accept string) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("write request: %w", err)
		}
		if len(b) > MaxRequest { // it would be refused after it was sent
			return nil, &fault.Error{
				What: fmt.Errorf("send request: it has %d bytes; the most is %d", len(b), MaxRequest), Code: fault.CodeUsage,
				Hint: "what is long is mostly the environment: --export=NONE leaves it out; read large data from a file",
			}
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://gangway"+path, body)
	if err != nil {
		return nil, fmt.Errorf("write request: %w", err)
	}
	req.Header.Set(VersionHeader, strings.TrimSpace(strconv.Itoa(Version)+" "+c.release))
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	return nil, refusal(resp)
}

// refusal is what an answer says that is not a good one.
func refusal(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var e Error
	if json.Unmarshal(b, &e) != nil || e.What == "" {
		e.What = fmt.Sprintf("the controller answers %s: %.200s", resp.Status, bytes.TrimSpace(b))
	}
	return e.fault()
}

// fault is e for people; errors.As finds e in it.
func (e *Error) fault() error {
	return &fault.Error{What: e, Cause: e.Cause, Hint: e.Hint, See: e.See, Code: e.Code}
}

// text asks for a document, of the media type accept where that can be had, and returns
// its type.
func (c *Client) text(ctx context.Context, path, accept string) (text, kind string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, path, nil, accept)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var b strings.Builder // its text is no copy
	if n := resp.ContentLength; n > 0 && n < 1<<30 {
		b.Grow(int(n))
	}
	if _, err = io.Copy(&b, resp.Body); err != nil {
		return "", "", fmt.Errorf("read answer of %s: %w", c.address, c.orContext(ctx, err))
	}
	return b.String(), resp.Header.Get("Content-Type"), nil
}

// lines reads an answer of JSON documents, one a line, and calls f for each until it says
// false, the answer ends, which is io.EOF, or ctx does.
func lines[T any](ctx context.Context, c *Client, method, path string, in any, f func(*T) bool) error {
	resp, err := c.do(ctx, method, path, in, "")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	for dec := json.NewDecoder(resp.Body); ; {
		var v T
		if err := dec.Decode(&v); err != nil {
			if errors.Is(err, io.EOF) {
				return io.EOF
			}
			return c.orContext(ctx, err)
		}
		if !f(&v) {
			return nil
		}
	}
}
