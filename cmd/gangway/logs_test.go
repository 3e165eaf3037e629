package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestLogsOfForgotten: the output of a job that only the accounting knows any more is in its
// file.
func TestLogsOfForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "out"), filepath.Join(dir, "s")
	if err := os.WriteFile(file, []byte("the end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jobs/{id}", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(&api.Error{What: "Invalid job id specified", Kind: "INVALID_JOB_ID"})
	})
	mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
		var page api.Page[api.Past]
		if r.URL.Query().Get("ids") == "7" {
			for _, task := range []uint32{1, 2} {
				j := api.Job{ID: job.ID(6 + task), State: job.Completed, Batch: true, Output: file, Array: &job.ArrayFacts{Job: 7, Task: task}}
				if task == 1 {
					j.Output = file + "1"
				}
				page.Items = append(page.Items, api.Past{Job: j})
			}
		}
		_ = json.NewEncoder(w).Encode(&page)
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	for name, want := range map[string]string{"7_2": "the end\n", "7_1": "out1: no such file", "8": "Invalid job id specified"} {
		client := api.Dial("unix:" + socket)
		defer client.Close()
		var out strings.Builder
		place, ok := parseJobPlace(name)
		if !ok {
			t.Fatal(name)
		}
		logs := &logs{env: &cli.Env{Stdout: &out, Stderr: &out, Getenv: os.Getenv}, client: client, rank: -1}
		if err := logs.show(t.Context(), place); err != nil {
			out.WriteString(err.Error())
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("logs %s: %q, want %q", name, out.String(), want)
		}
	}
}
