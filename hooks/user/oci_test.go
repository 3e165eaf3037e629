package user

import (
	"os"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestOCI: hooks get the state, their own arguments and exactly their environment; the
// points differ in what an error does.
func TestOCI(t *testing.T) {
	t.Setenv("SECRET", "1")
	dir := t.TempDir()
	script(t, dir+"/hook", `{ echo "$*"; env | grep -v PWD; cat; } >> `+dir+`/out; exit "${STATUS:-0}"`)
	second, minute := 1, 60
	hook := func(status string, args ...string) specs.Hook {
		return specs.Hook{Path: dir + "/hook", Args: append([]string{"hook"}, args...), Env: []string{"STATUS=" + status}, Timeout: &minute}
	}
	h := &specs.Hooks{CreateRuntime: []specs.Hook{hook("0", "b"), hook("4", "c"), hook("0", "never")}, Poststop: []specs.Hook{hook("5", "d"), hook("0", "e")}}
	//lint:ignore SA1019 deprecated, and what many files still have
	h.Prestart = []specs.Hook{hook("0", "a")}
	state := specs.State{Version: specs.Version, ID: "run-1", Status: specs.StateCreated, Pid: 42, Bundle: "/b"}
	want(t, Runner{}.OCI(t.Context(), CreateRuntime, h, state), "createRuntime: run hook", "exit status 4")
	want(t, Runner{}.OCI(t.Context(), Poststop, h, state), "exit status 5")
	if err := (Runner{}).OCI(t.Context(), Poststart, h, state); err != nil {
		t.Error(err)
	}
	if err := (Runner{}).OCI(t.Context(), Poststart, nil, state); err != nil {
		t.Error(err)
	}
	b, _ := os.ReadFile(dir + "/out")
	var args []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); len(line) < 6 {
			args = append(args, line)
		}
	}
	if got := strings.Join(args, ""); got != "abcde" || strings.Contains(string(b), "SECRET") || strings.Count(string(b), `"pid":42`) != 5 {
		t.Errorf("%q\n%s", got, b)
	}

	zero := 0
	for text, bad := range map[string]specs.Hook{
		"not absolute": {Path: "hook"}, "without dots": {Path: dir + "/../hook"}, "not positive": {Path: dir + "/hook", Timeout: &zero}, "no such file": {Path: dir + "/none"},
	} {
		want(t, Runner{}.OCI(t.Context(), Poststart, &specs.Hooks{Poststart: []specs.Hook{bad}}, state), text)
	}
	script(t, dir+"/slow", "sleep 1000")
	want(t, Runner{}.OCI(t.Context(), Poststart, &specs.Hooks{Poststart: []specs.Hook{{Path: dir + "/slow", Timeout: &second}}}, state), "killed after 1s")
	if err := os.Chmod(dir+"/slow", 0o777); err != nil {
		t.Fatal(err)
	}
	want(t, Runner{}.OCI(t.Context(), Poststart, &specs.Hooks{Poststart: []specs.Hook{{Path: dir + "/slow"}}}, state), "not to be trusted")

	notes := NotRun(&specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook"}}, StartContainer: []specs.Hook{{Path: "/x"}}, Poststop: h.Poststop})
	if len(notes) != 2 || !strings.Contains(notes[0], "createContainer hook /usr/bin/nvidia-cdi-hook is not run") || NotRun(nil) != nil {
		t.Errorf("%q", notes)
	}
}
