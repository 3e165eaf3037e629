package test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
)

// requeueItself: the TERM with which a job ends that requeues itself may be at its scontrol
// before the answer, which it waits for: else its caller would believe that nothing came of
// it. In no job, TERM ends scontrol as ever.
func requeueItself(c *client) {
	path := filepath.Join(c.dir, "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		c.t.Fatal(err)
	}
	asked, answer := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs/{id}/requeue", func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write([]byte("{}"))
		case <-r.Context().Done():
		}
	})
	web := &http.Server{Handler: mux}
	go func() { _ = web.Serve(l) }()
	defer func() { _ = web.Close() }()
	start := func(environ ...string) *background {
		cmd := c.cluster.command("scontrol", "requeue", "7")
		cmd.Env = append(append(cmd.Env, "GANGWAY_CLUSTER=unix:"+path), environ...)
		b := inBackground(c.t, cmd)
		<-asked
		b.signal(c.t, syscall.SIGTERM)
		return b
	}
	own := start("SLURM_JOB_ID=7")
	own.signal(c.t, syscall.SIGCONT)
	answer <- struct{}{}
	own.ends(c.t, 0)
	start().ends(c.t, 1)
}
