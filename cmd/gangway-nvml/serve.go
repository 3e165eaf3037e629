package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// inTime asks and waits no longer than the request says, or until gone is closed, in which
// case there is neither result nor failure. A question that hangs is left behind: the
// program is to end.
func inTime(nv asker, at *step, r report.Request, gone <-chan struct{}) (any, *report.Failure) {
	type answer struct {
		result  any
		failure *report.Failure
	}
	done := make(chan answer, 1)
	go func() { // left behind when the driver hangs: the process ends
		result, failure := nv.ask(r.Call, r.GPUs)
		done <- answer{result, failure}
	}()
	timeout := time.Duration(r.TimeoutMS) * time.Millisecond
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.result, a.failure
	case <-gone:
		return nil, nil
	case <-timer.C:
		return nil, &report.Failure{
			Kind: report.Hung, Text: fmt.Sprintf("no answer in %v to: %s", timeout, at),
			Cause: "the NVIDIA driver hangs",
			Hint:  "look for Xid messages in the kernel log: dmesg | grep NVRM",
		}
	}
}

// maxRequest is the longest line of a request: over a thousand UUIDs.
const maxRequest = 1 << 16

// serve answers requests until stdin ends, or until an answer does not come.
func serve(nv asker, at *step, stdin io.Reader, stdout io.Writer) error {
	lines, gone, over := make(chan []byte), make(chan struct{}), make(chan struct{})
	defer close(over)
	var readErr error
	go func() { // ends with stdin, or with the process
		defer close(gone)
		in := bufio.NewScanner(stdin)
		in.Buffer(nil, maxRequest)
		for in.Scan() {
			select {
			case lines <- bytes.Clone(in.Bytes()):
			case <-over:
				return
			}
		}
		readErr = in.Err()
	}()
	out := json.NewEncoder(stdout) // a line each
	out.SetEscapeHTML(false)
	for {
		var line []byte
		select {
		case line = <-lines:
		case <-gone:
			if readErr != nil {
				return fmt.Errorf("read requests: %w", readErr)
			}
			return nil
		}
		var request report.Request
		if err := json.Unmarshal(line, &request); err != nil {
			return fmt.Errorf("decode request: %w", err)
		}
		response := report.Response{ID: request.ID}
		result, failure := inTime(nv, at, request, gone)
		if failure == nil && result == nil {
			return nil // who asked is gone
		}
		if response.Error = failure; failure == nil {
			b, err := json.Marshal(result)
			if err != nil {
				return fmt.Errorf("encode the answer: %w", err)
			}
			response.Result = b
		}
		if err := out.Encode(response); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
		if failure != nil && failure.Kind == report.Hung {
			return asFault(request.Call, failure)
		}
	}
}

// watch writes events until stdin ends.
func watch(nv asker, beat time.Duration, uuids []string, stdin io.Reader, stdout io.Writer) error {
	gone, failed := make(chan struct{}), make(chan error, 1)
	go func() { // ends with stdin, or with the process
		_, _ = io.Copy(io.Discard, stdin)
		close(gone)
	}()
	go func() { // left behind when the driver hangs: the process ends
		out := json.NewEncoder(stdout)
		var writeErr error
		failure := nv.watch(uuids, beat, func(e *report.Event) bool {
			writeErr = out.Encode(report.Beat{Event: e})
			return writeErr == nil
		})
		if failure != nil {
			writeErr = out.Encode(report.Beat{Error: failure})
		}
		if writeErr != nil {
			writeErr = fmt.Errorf("write events: %w", writeErr)
		}
		failed <- writeErr
	}()
	select {
	case <-gone:
		return nil
	case err := <-failed:
		return err
	}
}
