package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// TestHoldRefused: scontrol says why a job cannot be held, and of all the last one again.
func TestHoldRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]api.Error{"1": {What: "the store takes nothing", Kind: "CAN_NOT_SAVE"}, "2": {What: "x", Kind: "ALREADY_DONE"}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs/{id}/hold", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(kinds[r.PathValue("id")])
	})
	web := &http.Server{Handler: mux}
	go func() { _ = web.Serve(l) }()
	defer func() { _ = web.Close() }()
	client := api.Dial("unix:" + path)
	defer client.Close()
	for ids, want := range map[string][]string{
		"1":   {"the store takes nothing for job 1", "slurm_suspend error: the store takes nothing"},
		"1,2": {"the store takes nothing for job 1", "Job/step already completing or completed for job 2", "slurm_suspend error: Job/step already completing or completed"},
	} {
		env := &cli.Env{Getenv: func(string) string { return "100" }}
		s := &controlled{Control: &listing.Control{Verb: "hold", Args: []string{ids}}, client: client, env: env}
		var got []string
		for _, r := range refusals(s.change(t.Context())) {
			got = append(got, r.Lines...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("hold %s says %q, want %q", ids, got, want)
		}
	}
}
