package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// TestForgottenStep: a step of which neither node nor controller know any more, as after this
// process was stopped for long, ended as the accounting says; without that nobody waits for it.
func TestForgottenStep(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(&api.Error{What: "Invalid job id specified", Kind: "INVALID_JOB_ID"})
	})
	mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
		var page api.Page[api.Past]
		if r.URL.Query().Get("ids") == "7" {
			end := api.Step{Key: job.StepKey{Job: 7, Attempt: 1, Try: 2}, Phase: "ended", State: job.Failed, Exit: 3, Start: 1, End: 2}
			page.Items = append(page.Items, api.Past{Job: api.Job{ID: 7, State: job.Failed}, Steps: []api.Step{end}})
		}
		_ = json.NewEncoder(w).Encode(&page)
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	for id, want := range map[job.ID]string{7: "3 <nil>", 8: "0 how step 8.0 ended is not known any more"} {
		client := api.Dial("unix:" + socket)
		defer client.Close()
		var said strings.Builder
		r := &stepRun{
			env: &cli.Env{Stdout: &said, Stderr: &said, Getenv: os.Getenv}, name: "srun", quiet: true, client: client, signals: &signals{}, restore: func() {},
			options: &slurm.Options{OnlyOutput: -1, OnlyError: -1}, request: &api.StepRequest{Program: job.Program{Input: "none"}},
			step: api.Step{Key: job.StepKey{Job: id, Attempt: 1, Try: 1}, Tasks: 1, Nodes: []string{"n1"}, Agents: []string{"unix:/no/such"}},
		}
		r.out = newOutputs(1, r.options)
		r.hurried.Store(true) // there is no output to wait for
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		events := make(chan api.Event)
		go r.watch(ctx, id, events)
		code, err := r.follow(ctx, events)
		if got := fmt.Sprint(code, " ", err); got != want || ctx.Err() != nil {
			t.Errorf("job %v: %s, want %s; %v", id, got, want, ctx.Err())
		}
	}
}

// TestEndedBeforeStart: a step that somebody ended before it had ranks does not end without a
// word.
func TestEndedBeforeStart(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	r := &stepRun{env: &cli.Env{Stderr: &said}, name: "srun", step: api.Step{Key: job.StepKey{Job: 7}}}
	code, err := r.report.verdict(r, &api.Step{State: job.CancelledState, Phase: "ended"})
	if code != 1 || err != nil || said.String() != "srun: Force Terminated StepId=7.0\n" {
		t.Errorf("exit %d, %v, %q", code, err, said.String())
	}
}
