package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
)

// serve answers requests at a unix socket.
func serve(t *testing.T, handler http.HandlerFunc) *api.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	c := api.Dial("unix:" + path)
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /v1/jobs":
			var s api.Submit
			if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.Spec.Name != "x" {
				t.Errorf("submit: %+v %v", s, err)
			}
			fmt.Fprint(w, `{"ID":7}`)
		case "GET /v1/watch":
			if r.URL.Query().Get("ids") != "7,8" {
				t.Errorf("watch: %s", r.URL)
			}
			fmt.Fprint(w, `{"Seq":1,"Job":{"ID":7}}`+"\n"+`{"Seq":2,"Synced":true}`+"\n")
		case "DELETE /v1/jobs/12_3":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"What":"there is no job 12_3","Hint":"gangway queue","Kind":"INVALID_JOB_ID","Code":125}`)
		case "GET /v1":
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "what?")
		}
	})
	if a, err := c.Submit(t.Context(), &api.Submit{Spec: job.Spec{Name: "x"}}); err != nil || a.ID != 7 {
		t.Errorf("submit: %+v %v", a, err)
	}
	var seen []uint64
	err := c.Watch(t.Context(), &api.Query{IDs: []job.ID{7, 8}}, func(e *api.Event) bool {
		seen = append(seen, e.Seq)
		return true
	})
	if !errors.Is(err, io.EOF) || len(seen) != 2 {
		t.Errorf("watch: %v %v", seen, err)
	}
	err = c.CancelNamed(t.Context(), "12_3")
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Kind != "INVALID_JOB_ID" || fault.Text("x", err, false) != "x: error: there is no job 12_3\nx: hint:  gangway queue\n" {
		t.Errorf("cancel: %v", err)
	}
	if _, err := c.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "502 Bad Gateway: what?") {
		t.Errorf("ping: %v", err)
	}
}

// TestUnreachable: who does not answer is named, within a second.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	gone := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", gone)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close() // as a controller that was killed leaves it
	for _, address := range []string{"unix:/no/such", "unix:" + gone, "127.0.0.1:1"} {
		began := time.Now()
		_, err := api.Dial(address).Ping(t.Context())
		var away *api.Unreachable
		if !errors.As(err, &away) || away.Address != address || fault.Code(err) != fault.CodeUnreachable || time.Since(began) > time.Second {
			t.Errorf("%s after %s: %v", address, time.Since(began), err)
		}
	}
	// An answer that breaks off is as none.
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"Cluster":`)
	})
	var away *api.Unreachable
	if _, err := c.Ping(t.Context()); !errors.As(err, &away) {
		t.Errorf("an answer that breaks off: %v", err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "clusters"), 0o700); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	var start uint64
	if _, err := fmt.Sscan(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[19], &start); err != nil {
		t.Fatal(err)
	}
	add := func(name string, pid int, start uint64) {
		b, _ := json.Marshal(api.Found{Name: name, Socket: "unix:/" + name, PID: pid, Start: start})
		if err := os.WriteFile(filepath.Join(dir, "clusters", name+".json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	system := "/no/such"
	find := func(cluster string) string {
		address, err := api.Find(func(name string) string {
			if name == api.Variable {
				return cluster
			}
			return ""
		}, []string{"/no/such", dir}, system)
		if err != nil {
			if fault.Code(err) != fault.CodeUnreachable {
				t.Errorf("%v: exit %d", err, fault.Code(err))
			}
			return strings.TrimSpace(err.Error())
		}
		return address
	}
	want := func(cluster, want string) {
		t.Helper()
		if got := find(cluster); got != want {
			t.Errorf("%s=%q: %q, want %q", api.Variable, cluster, got, want)
		}
	}
	want("", "no cluster is running")
	add("dead", os.Getpid(), start+1) // another process that had the same number
	want("", "no cluster is running")
	system = t.TempDir() // of all users: whether it runs nobody may see
	if err := os.Mkdir(filepath.Join(system, "clusters"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"lab.json": `{"name":"lab","socket":"unix:/lab"}`, "lab.n1.json": `{"name":"lab","socket":"unix:/lab/n1"}`, "torn.json": `{"na`} {
		if err := os.WriteFile(filepath.Join(system, "clusters", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want("", "unix:/lab")
	want("lab", "unix:/lab")
	add("a", os.Getpid(), start)
	want("", "unix:/a")
	add("b", os.Getpid(), start)
	want("", "2 clusters run here: a, b")
	want("b", "unix:/b")
	want("dead", "find cluster dead (GANGWAY_CLUSTER): file does not exist")
	want("unix:/x", "unix:/x")
	want("/x", "unix:/x")
}

func TestQuery(t *testing.T) {
	t.Parallel()
	q := api.Query{
		IDs: []job.ID{1, 2}, Users: []string{"a", "b"}, Partitions: []string{"p"}, Accounts: []string{"c"}, States: []string{"PD"},
		Names: []string{"n&m"}, Nodes: []string{"n1"}, Since: 5, Until: 6, Tasks: true, Limit: 7, After: "x=y", Recent: true,
	}
	got, err := api.ParseQuery(q.Values())
	if err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("%+v, %v; want %+v", got, err, q)
	}
	for name, text := range map[string]string{
		"ids": "1,x", "limit": "abc", "since": "yesterday", "until": "-1", "recent": "perhaps", "statse": "PD", "limit ": "1",
	} {
		if _, err := api.ParseQuery(map[string][]string{name: {text}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, text, err)
		}
	}
	if _, err := api.ParseQuery(map[string][]string{"users": {"a", "b"}}); err == nil {
		t.Error("of a parameter that is given twice one is ignored")
	}
}
