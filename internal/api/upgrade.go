package api

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
)

// Upgrade asks for a connection that becomes another protocol: after the answer it is the
// caller's. What comes is read from r, which may have some of it already.
func (c *Client) Upgrade(ctx context.Context, path, protocol string) (conn net.Conn, r *bufio.Reader, err error) {
	conn, err = c.dial(ctx)
	if err != nil {
		return nil, nil, c.orContext(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() && err == nil {
			err = context.Canceled
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	request := "GET " + path + " HTTP/1.1\r\nHost: gangway\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"
	if _, err = conn.Write([]byte(request)); err != nil {
		return nil, nil, c.orContext(ctx, err)
	}
	r = bufio.NewReaderSize(conn, 64<<10)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodGet})
	if err != nil {
		return nil, nil, c.orContext(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		err = refusal(resp)
		return nil, nil, fmt.Errorf("%d: %w", resp.StatusCode, err)
	}
	return conn, r, nil
}
