package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Upgrade asks for a connection that becomes another protocol: after the answer it is the
// caller's. What comes is read from r, which may have some of it already.
func (c *Client) Upgrade(ctx context.Context, path, protocol string) (net.Conn, *bufio.Reader, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, c.orContext(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r, err := c.upgrade(conn, path, protocol)
	if !stop() {
		err = context.Canceled
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}

// Gone is that what was asked for is over, with what is left of it.
type Gone struct{ Body []byte }

// Error implements error.
func (*Gone) Error() string { return "it is over" }

func (c *Client) upgrade(conn net.Conn, path, protocol string) (*bufio.Reader, error) {
	if c.prefix != "" {
		path = c.prefix + strings.TrimPrefix(path, "/v1")
	}
	request := "GET " + path + " HTTP/1.1\r\nHost: gangway\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"
	if _, err := conn.Write([]byte(request)); err != nil {
		return nil, c.unreachable(err)
	}
	r := bufio.NewReaderSize(conn, 64<<10)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodGet})
	if err != nil {
		return nil, c.unreachable(err)
	}
	if resp.StatusCode == http.StatusGone {
		body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
		if err != nil {
			return nil, c.unreachable(err)
		}
		return nil, &Gone{Body: body}
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("%d: %w", resp.StatusCode, refusal(resp))
	}
	return r, nil
}
