package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// loadVerb is how this program starts itself as the user of a cluster.
const loadVerb = "cluster-load"

// load asks a controller as the user that this process is of, and prints how long that took
// in nanoseconds:
//
//	held SOCKET N    submit N jobs that wait, over one connection
//	ended SOCKET N   submit N jobs of "true", and wait until all have ended
//	answer SOCKET    wait until the controller answers
func load(args []string) error {
	if len(args) < 2 {
		return errors.New("wants what to do, and a socket")
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
	defer stop()
	l := &loader{client: api.Dial("unix:" + args[1]), socket: args[1]}
	defer l.client.Close()
	began := time.Now()
	var err error
	switch args[0] {
	case "answer":
		err = l.answer(ctx)
	case "held", "ended":
		var n int
		if n, err = strconv.Atoi(args[2]); err != nil {
			return err
		}
		if err = l.submit(ctx, n, args[0] == "held"); err == nil && args[0] == "ended" {
			err = l.ended(ctx)
		}
	default:
		return fmt.Errorf("%q is nothing to do", args[0])
	}
	fmt.Println(time.Since(began).Nanoseconds())
	return err
}

type loader struct {
	client *api.Client
	socket string
}

func (l *loader) answer(ctx context.Context) error {
	for {
		if _, err := l.client.Ping(ctx); err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}

// ended waits until no job is left.
func (l *loader) ended(ctx context.Context) error {
	for {
		page, err := l.client.Jobs(ctx, &api.Query{Limit: 1})
		if err != nil || len(page.Items) == 0 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// usualJob is a job as people submit them: a script, and an environment of some kilobytes.
func usualJob(held bool) *api.Submit {
	environ := [][]byte{[]byte("PATH=/usr/bin:/bin")}
	for i := range 60 {
		environ = append(environ, fmt.Appendf(nil, "VARIABLE_%d=/usr/share/some/where/%d/and/further/down", i, i))
	}
	return &api.Submit{
		Spec: job.Spec{Name: "true", MinNodes: 1, CPUsPerTask: 1, TimeLimit: job.Hour, Hold: held},
		Program: &job.Program{
			Script: []byte("#!/bin/sh\ntrue\n"), Args: [][]byte{[]byte("true.sh")}, Environ: environ,
			Cwd: []byte("/"), Output: "/dev/null",
		},
		SubmitDir: []byte("/"), SubmitHost: "bench",
	}
}

// submit sends n jobs as one stream, and reads an answer for each: the job is durable then.
func (l *loader) submit(ctx context.Context, n int, held bool) error {
	line, err := json.Marshal(usualJob(held))
	if err != nil {
		return err
	}
	line = append(line, '\n')
	body, pipe := io.Pipe()
	go func() {
		b := bufio.NewWriterSize(pipe, 1<<16)
		for range n {
			_, _ = b.Write(line)
		}
		_ = pipe.CloseWithError(b.Flush())
	}()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.socket)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://controller/v1/submit", body)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: dial}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	count := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); count++ {
		if bytes.Contains(lines.Bytes(), []byte("Error")) {
			return fmt.Errorf("refused: %s", lines.Bytes())
		}
	}
	if count != n {
		return fmt.Errorf("%d answers to %d jobs", count, n)
	}
	return nil
}

// copyProgram puts a program where other users may start it.
func copyProgram(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o755)
}
