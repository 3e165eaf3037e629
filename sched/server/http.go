package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
)

// handler answers a request with a value to be sent as JSON, or refuses it. Answers of
// their own kind are given by the handler, which then returns errDone.
type handler func(w http.ResponseWriter, r *http.Request) (any, error)

// errDone is that an answer was given already.
var errDone = errors.New("answered")

// Handler is the public API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"GET /v1":                           s.ping,
		"POST /v1/jobs":                     s.postJob,
		"POST /v1/submit":                   s.postJobs,
		"GET /v1/jobs":                      s.getJobs,
		"GET /v1/jobs/{id}":                 s.getJob,
		"POST /v1/jobs/{id}":                s.changeJob,
		"DELETE /v1/jobs/{id}":              s.cancelJob,
		"GET /v1/jobs/{id}/script":          s.getScript,
		"GET /v1/jobs/{id}/events":          s.getEvents,
		"GET /v1/jobs/{id}/hold":            s.holdStream,
		"POST /v1/jobs/{id}/{verb}":         s.verbJob,
		"POST /v1/jobs/{id}/steps":          s.postStep,
		"GET /v1/jobs/{id}/steps":           s.getJobSteps,
		"GET /v1/jobs/{id}/steps/{step}":    s.getStep,
		"DELETE /v1/jobs/{id}/steps/{step}": s.endStep,
		"GET /v1/steps":                     s.getSteps,
		"GET /v1/steps/{key}":               s.getStepByKey,
		"GET /v1/history":                   s.getHistory,
		"GET /v1/nodes":                     s.getNodes,
		"GET /v1/nodes/{name}":              s.getNode,
		"POST /v1/nodes/{name}":             s.changeNode,
		"GET /v1/partitions":                s.getPartitions,
		"POST /v1/partitions/{name}":        s.changePartition,
		"GET /v1/cluster":                   s.getCluster,
		"POST /v1/cluster/reconfigure":      s.postReconfigure,
		"GET /v1/diag":                      s.getDiag,
		"POST /v1/diag/reset":               s.resetDiag,
		"GET /v1/watch":                     s.getWatch,
		"GET /v1/explain/{id}":              s.getExplain,
		"POST /v1/plan":                     s.postPlan,
		"POST /v1/precache":                 s.postPrecache,
		"GET /v1/images":                    s.getImages,
	} {
		mux.HandleFunc(pattern, s.answer(h))
	}
	mux.HandleFunc("GET /v1/nodes/{name}/steps/{key}/io", s.answer(s.nodeIO))
	mux.HandleFunc("GET /healthz", s.healthz)
	metrics := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		_ = s.do(r.Context(), func(c *core) { c.count() })
		metrics.ServeHTTP(w, r)
	})
	return mux
}

// answer makes a handler one of net/http.
func (s *Server) answer(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, _ := s.who(r) // who is nobody is counted as root, and refused below
		defer s.core.meter.tally.begun(r, who.uid)()
		if err := s.understands(r.Header.Get(api.VersionHeader)); err != nil {
			refuse(w, err)
			return
		}
		if err := s.readBody(w, r, limitOf(r.Pattern)); err != nil {
			refuse(w, err)
			return
		}
		v, err := h(w, r)
		if errors.Is(err, errDone) {
			return
		}
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "s") {
			w.WriteHeader(http.StatusCreated)
		}
		if v == nil {
			v = struct{}{}
		}
		_ = json.NewEncoder(w).Encode(v)
	}
}

// understands refuses who speaks by another contract, before anything is done of what it
// may not have meant.
func (s *Server) understands(header string) error {
	number, release, _ := strings.Cut(header, " ")
	if number == "" || number == strconv.Itoa(api.Version) {
		return nil
	}
	return &api.Error{
		What: fmt.Sprintf("this command speaks version %s of the API (release %s), and the controller version %d (release %s)",
			number, cmp.Or(release, "not known"), api.Version, s.core.opts.Version),
		Hint: "use commands and daemons of one release: install it, and start the cluster again; what runs goes on",
		Kind: "PROTOCOL_VERSION_ERROR",
	}
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	e := errorOf(err)
	code := http.StatusUnprocessableEntity
	switch {
	case strings.HasPrefix(e.Kind, "INVALID_JOB_ID") || strings.HasPrefix(e.Kind, "INVALID_NODE"):
		code = http.StatusNotFound
	case e.Kind == "ACCESS_DENIED":
		code = http.StatusForbidden
	case e.Kind == "CONTROLLER_UNREACHABLE":
		code = http.StatusServiceUnavailable
	case e.Kind == "CAN_NOT_SAVE":
		code = http.StatusInsufficientStorage
	case e.Code == fault.CodeUsage:
		code = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(e)
}

// errorOf is any error as one of the API.
func errorOf(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return &api.Error{What: err.Error()}
}

// body reads the request's JSON: one document, all of whose words have a meaning here. Work
// is not begun for a request that was misspelt.
func body(r *http.Request, into any) error {
	err := readJSON(r, into)
	if errors.Is(err, io.EOF) {
		err = errors.New("there is nothing in it")
	}
	if err != nil {
		return &api.Error{What: "read the request: " + err.Error(), Code: fault.CodeUsage, Kind: "BAD_REQUEST"}
	}
	return nil
}

// mayBody is body for a request whose path says all that has to be said.
func mayBody(r *http.Request, into any) error {
	err := readJSON(r, into)
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return &api.Error{What: "read the request: " + err.Error(), Code: fault.CodeUsage, Kind: "BAD_REQUEST"}
}

func readJSON(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something behind its JSON")
	}
	return nil
}

// ask runs f in the core and returns what it returns, once all that f has seen is on stable
// storage: nobody is told what a crash could undo. While the store takes nothing there is no
// such moment; then how things are in memory is told, because those who look for what is
// wrong are to see something.
func ask[T any](s *Server, r *http.Request, f func(*core) (T, error)) (v T, err error) {
	var failed error
	done, err := s.settled(r.Context(), func(c *core) { v, failed = f(c) })
	if err != nil {
		return v, err
	}
	select {
	case <-done:
	case <-s.core.commit.troubled():
	case <-r.Context().Done():
		return v, r.Context().Err()
	case <-s.stopped:
		return v, stopping()
	}
	return v, failed
}

// settled runs f in the core. The channel is closed when all that was decided before, or by
// f, is on stable storage.
func (s *Server) settled(ctx context.Context, f func(*core)) (<-chan struct{}, error) {
	done := make(chan struct{})
	err := s.do(ctx, func(c *core) {
		f(c)
		c.after(func() { close(done) })
	})
	return done, err
}

// durably runs f in the core, and waits until what follows from it is on stable storage.
// While the store takes nothing f is not run.
func (s *Server) durably(r *http.Request, f func(*core) error) error {
	if s.core.commit.broken() {
		return s.core.commit.refusal("store the change: the store takes nothing at the moment", ", then try again")
	}
	var failed error
	done, err := s.settled(r.Context(), func(c *core) { failed = f(c) })
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	select {
	case <-done:
		return nil
	case <-s.core.commit.troubled():
		return s.core.commit.refusal("store the change: the store takes nothing at the moment; the change is made when it does again", "")
	case <-r.Context().Done():
		return r.Context().Err()
	case <-s.stopped:
		return stopping()
	}
}

func (s *Server) ping(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (api.Ping, error) {
		return api.Ping{
			Cluster: c.opts.Cluster.Name, Version: c.opts.Version, API: api.Version, Epoch: c.store.Epoch(), Now: c.now,
			Nodes: len(c.nodes), PID: os.Getpid(),
		}, nil
	})
}

func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	if err := s.do(r.Context(), func(*core) {}); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if s.core.commit.broken() {
		http.Error(w, "the store takes nothing; jobs that run go on", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

// idOf reads a job's id as people write it: 12, or 12_3 for a task of an array.
func (c *core) idOf(text string) (job.ID, error) {
	bad := &api.Error{What: fmt.Sprintf("job %s: Invalid job id specified", text), Kind: "INVALID_JOB_ID"}
	first, task, isTask := strings.Cut(text, "_")
	n, err := strconv.ParseUint(first, 10, 32)
	if err != nil || n == 0 {
		return 0, bad
	}
	id := job.ID(n)
	sub := c.submission(id)
	if sub == nil {
		return 0, bad
	}
	if _, known := c.sched.Job(id); !known || c.nobodys(id) { // it ended some time ago
		return 0, bad
	}
	if !isTask {
		return id, nil
	}
	k, err := strconv.ParseUint(task, 10, 32)
	if err != nil {
		return 0, bad
	}
	for _, one := range c.tasksOf(id) {
		if v, ok := c.sched.Job(one); ok && v.Array == id && uint64(v.Task) == k {
			return one, nil
		}
	}
	return 0, bad
}

// writer sends JSON documents, a line each.
type writer struct {
	w   *bufio.Writer
	rc  *http.ResponseController
	enc *json.Encoder
}

func newWriter(w http.ResponseWriter) *writer {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	b := bufio.NewWriter(w)
	return &writer{b, http.NewResponseController(w), json.NewEncoder(b)}
}

func (w *writer) put(v any) error { return w.enc.Encode(v) }

func (w *writer) flush() error {
	if err := w.w.Flush(); err != nil {
		return err
	}
	return w.rc.Flush()
}

// holdStream keeps an allocation as long as somebody reads it.
func (s *Server) holdStream(w http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	id, held := job.ID(0), false
	defer func() {
		if !held {
			return
		}
		s.put(func(c *core) {
			if h := c.holders[id]; h != nil {
				if h.count--; h.count <= 0 {
					h.count, h.gone = 0, c.now
				}
			}
		})
	}()
	_, err := ask(s, r, func(c *core) (_ struct{}, err error) {
		var v sched.JobView
		id, v, err = c.owned(who, r.PathValue("id"))
		if err == nil && !v.State.Done() {
			h := c.holders[id]
			if h == nil {
				h = &holding{}
				c.holders[id] = h
			}
			if !c.held[id] {
				c.emit(jobHeld{At: c.now, ID: id})
			}
			h.count, h.gone, held = h.count+1, 0, true
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, err
	}
	out := newWriter(w)
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for {
		if out.put(struct{}{}) != nil || out.flush() != nil {
			return nil, errDone
		}
		over, err := ask(s, r, func(c *core) (bool, error) {
			v, ok := c.sched.Job(id)
			return !ok || v.State.Done(), nil
		})
		if err != nil || over {
			return nil, errDone
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return nil, errDone
		case <-s.stopped:
			return nil, errDone
		}
	}
}

// tickHolders ends the allocations whose holders have been gone for too long.
func (c *core) tickHolders() {
	for _, id := range slices.Sorted(maps.Keys(c.holders)) {
		h := c.holders[id]
		v, ok := c.sched.Job(id)
		if !ok || v.State.Done() {
			delete(c.holders, id)
			continue
		}
		sub := c.submission(id)
		if h.gone == 0 || c.now < h.gone.Add(holderSpan) || sub.Facts.Program != nil || sub.Facts.Unheld {
			continue
		}
		c.log.Info("allocation without its holder is ended", "job", id)
		h.gone = c.now
		if err := c.cancel(id, "", &job.Fault{What: "who held the allocation went away"}); err != nil {
			c.log.Error("cancel job", "job", id, "err", err)
		}
	}
}
