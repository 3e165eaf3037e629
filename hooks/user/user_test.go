package user

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// script writes an executable file.
func script(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// want checks an error's text, cause and hint together.
func want(t *testing.T, err error, all ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q", all)
		return
	}
	text := fault.Text("", err, false)
	for _, s := range all {
		if !strings.Contains(text, s) {
			t.Errorf("%q is missing in:\n%s", s, text)
		}
	}
}

// TestContract: what a hook gets and what becomes of its answer.
func TestContract(t *testing.T) {
	t.Setenv("LD_PRELOAD", "/nonexistent.so")
	t.Setenv("SECRET", "1")
	system, personal, out := t.TempDir(), t.TempDir(), t.TempDir()
	script(t, system+"/prepare/10-env", `cat > "$OUT/state"; env | sort > "$OUT/env"; pwd > "$OUT/cwd"; ls /proc/self/fd > "$OUT/fds"
echo '{"version": 1, "edits": {"env": ["A=1"], "mounts": [{"hostPath": "/data", "containerPath": "/d", "options": ["ro"]}]}, "notes": ["mounted /data"]}'`)
	script(t, system+"/prepare/20-silent", `cat > "$OUT/second"; echo "a word" >&2`)
	script(t, personal+"/prepare/05-mine", `echo '{"version":1,"edits":{"env":["A=2"],"deviceNodes":[{"path":"/dev/fuse"}]}}'`)
	for _, name := range []string{".hidden", "10-env~", "x.rpmsave", "README.sh"} {
		script(t, system+"/prepare/"+name, "exit 9")
	}
	if err := os.WriteFile(system+"/prepare/30-plain", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(system+"/prepare/directory", 0o755); err != nil {
		t.Fatal(err)
	}
	r := Runner{Dirs: []string{system, "/nonexistent", personal}, User: "alice", Home: "/home/alice", Env: []string{"OUT=" + out}}
	inherited, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	got, err := r.Prepare(t.Context(), State{ID: "run-1", UID: 1000, Image: Image{Reference: "x:1", Env: []string{"LD_PRELOAD=/evil.so"}}, Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Edits.Env, []string{"A=1", "A=2"}) || len(got.Edits.Mounts) != 1 || len(got.Edits.DeviceNodes) != 1 {
		t.Errorf("%+v", got.Edits)
	}
	if notes := strings.Join(got.Notes, "|"); notes != system+"/prepare/30-plain is no hook because it is not executable: chmod +x, or give it another name|10-env: mounted /data|20-silent: a word" {
		t.Error(notes)
	}
	if len(got.Ran) != 3 || got.Ran[2].Path != personal+"/prepare/05-mine" || got.Ran[0].Took <= 0 {
		t.Errorf("%+v", got.Ran)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if env := read("env"); env != "GANGWAY_HOOK_PHASE=prepare\nHOME=/home/alice\nLANG=C.UTF-8\nLOGNAME=alice\nOUT="+out+"\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/\nUSER=alice\n" {
		t.Error(env)
	}
	if cwd, fds := read("cwd"), strings.Fields(read("fds")); cwd != "/\n" || len(fds) > 5 { // ls has one itself, and 3 is what ties the hook to its caller
		t.Errorf("cwd %q, files %q", cwd, fds)
	}
	var state, second State
	if err := errors.Join(json.Unmarshal([]byte(read("state")), &state), json.Unmarshal([]byte(read("second")), &second)); err != nil {
		t.Fatal(err)
	}
	if state.Version != 1 || state.Phase != Prepare || state.ID != "run-1" || state.Edits != nil || state.Image.Env[0] != "LD_PRELOAD=/evil.so" {
		t.Errorf("%+v", state)
	}
	if second.Edits == nil || second.Edits.Env[0] != "A=1" {
		t.Errorf("%+v", second.Edits)
	}
}

// TestNothing: without directories, or without hooks in them, nothing happens.
func TestNothing(t *testing.T) {
	for _, r := range []Runner{{}, {Dirs: []string{t.TempDir(), "/nonexistent"}}} {
		got, err := r.Start(t.Context(), State{})
		if err != nil || len(got.Ran)+len(got.Notes) != 0 {
			t.Errorf("%+v %v", got, err)
		}
	}
	want(t, func() error { _, err := Runner{Dirs: []string{"/dev/null"}}.Stop(t.Context(), State{}); return err }(), "look for hooks")
}

// TestFailures: what hooks do wrong, and how it reads.
func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		phase  Phase
		script string
		want   []string
	}{
		"status":      {Prepare, "echo out of licences >&2; echo try later >&2; exit 3", []string{"10-x: exit status 3", "it said: out of licences; try later"}},
		"signal":      {Start, "kill -9 $$", []string{"signal: killed"}},
		"timeout":     {Start, "sleep 1000 & sleep 1000", []string{"it took too long and was killed after 300ms", "raise the timeout"}},
		"no JSON":     {Prepare, "echo mounted", []string{"read answer", "it wrote to stdout: mounted", `{"version": 1`}},
		"two answers": {Prepare, `echo '{"version":1}{"version":1}'`, []string{"after the JSON value"}},
		"misspelt":    {Prepare, `echo '{"version":1,"edit":{}}'`, []string{`unknown field "edit"`}},
		"misspelt 2":  {Prepare, `echo '{"version":1,"edits":{"mount":[]}}'`, []string{`unknown field "mount"`}},
		"no version":  {Prepare, `echo '{}'`, []string{"its version is 0"}},
		"version 2":   {Prepare, `echo '{"version":2}'`, []string{"its version is 2, and this is version 1"}},
		"too late":    {Start, `echo '{"version":1,"edits":{"env":["A=1"]}}'`, []string{"in the phase start it is too late"}},
		"variable":    {Prepare, `echo '{"version":1,"edits":{"env":["A"]}}'`, []string{"is not NAME=VALUE"}},
		"mount":       {Prepare, `echo '{"version":1,"edits":{"mounts":[{"hostPath":"/a/../../etc","containerPath":"/x"}]}}'`, []string{"/a/../../etc"}},
		"no mount":    {Prepare, `echo '{"version":1,"edits":{"mounts":[null]}}'`, []string{"null"}},
		"device":      {Prepare, `echo '{"version":1,"edits":{"deviceNodes":[{"path":"dev/x"}]}}'`, []string{"no absolute path"}},
		"other hooks": {Prepare, `echo '{"version":1,"edits":{"hooks":[{"hookName":"createContainer","path":"/x"}]}}'`, []string{"may not bring others"}},
		"too much":    {Prepare, "head -c 2000000 /dev/zero", []string{"more than 1048576 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script(t, filepath.Join(dir, string(test.phase), "10-x"), test.script)
			script(t, filepath.Join(dir, string(test.phase), "20-never"), "touch "+dir+"/ran")
			begin, timeout := time.Now(), time.Minute
			if name == "timeout" {
				timeout = 300 * time.Millisecond
			}
			_, err := Runner{Dirs: []string{dir}, Timeout: timeout}.run(t.Context(), State{Phase: test.phase})
			want(t, err, test.want...)
			if _, err := os.Stat(dir + "/ran"); err == nil {
				t.Error("the next hook ran")
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/start", 0o755); err != nil {
		t.Fatal(err)
	}
	for text, message := range map[string]string{"#!/nonexistent/sh\n": "look at its first line", "\x7fELF": "#!/bin/sh", "nothing": "#!/bin/sh"} {
		if err := os.WriteFile(dir+"/start/x", []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Runner{Dirs: []string{dir}}.Start(t.Context(), State{})
		want(t, err, "x: ", message)
	}
}

// TestTimeoutKillsAll: nothing of a hook that was killed is left, and a context that
// ends does the same.
func TestTimeoutKillsAll(t *testing.T) {
	dir := t.TempDir()
	script(t, dir+"/start/x", "sleep 1234 & echo $! > "+dir+"/pid; wait")
	_, err := Runner{Dirs: []string{dir}, Timeout: 2 * time.Second}.Start(t.Context(), State{})
	want(t, err, "too long")
	gone(t, dir+"/pid")
}

// gone waits for the end of the process whose number is in a file.
func gone(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(b)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s is still there", b)
}

// TestLeftBehind: a process that keeps the hook's output open holds nobody up, is
// killed, and is told of.
func TestLeftBehind(t *testing.T) {
	dir := t.TempDir()
	script(t, dir+"/start/x", "sleep 1234 & echo $! > "+dir+"/pid")
	got, err := Runner{Dirs: []string{dir}}.Start(t.Context(), State{})
	if err != nil || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "setsid") {
		t.Errorf("%+v %v", got, err)
	}
	gone(t, dir+"/pid")
}

// TestLivesOn: a process in a session of its own lives on, and nobody says that it was
// killed; so does one of the hook's group that holds none of its files.
func TestLivesOn(t *testing.T) {
	dir := t.TempDir()
	script(t, dir+"/start/x", "setsid sh -c 'echo $$ > "+dir+"/session; exec sleep 1234' & while ! test -s "+dir+"/session; do sleep 0.01; done")
	script(t, dir+"/start/y", "sleep 1234 <&- >/dev/null 2>&1 & echo $! > "+dir+"/group")
	got, err := Runner{Dirs: []string{dir}}.Start(t.Context(), State{})
	if err != nil || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "it lives on") || strings.Contains(got.Notes[0], "killed") {
		t.Errorf("%+v %v", got, err)
	}
	time.Sleep(100 * time.Millisecond) // in which a signal would arrive
	for _, name := range []string{"/session", "/group"} {
		pid, isAlive := process(t, dir+name)
		if !isAlive {
			t.Errorf("the process of %s is gone", name)
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

// TestNoTerminal: a hook leads a session of its own, which no terminal belongs to.
func TestNoTerminal(t *testing.T) {
	dir := t.TempDir()
	script(t, dir+"/start/x", `read -r pid name state parent group session tty rest < /proc/$$/stat
test $group,$session,$tty = $$,$$,0 || { echo "group $group, session $session, terminal $tty of $$" >&2; exit 1; }`)
	if _, err := (Runner{Dirs: []string{dir}}).Start(t.Context(), State{}); err != nil {
		t.Error(err)
	}
}

// TestKilledCaller: when the process that runs a hook is killed, so are the hook and what
// it has started, except for what is in a session of its own.
func TestKilledCaller(t *testing.T) {
	if dir := os.Getenv("HOOKS_TEST_CALLER"); dir != "" {
		_, err := Runner{Dirs: []string{dir}}.Start(t.Context(), State{})
		t.Fatal("the hook ended", err)
	}
	dir := t.TempDir()
	script(t, dir+"/start/x", "echo $$ > "+dir+"/hook; setsid sleep 1234 & echo $! > "+dir+"/session; sleep 1234 & echo $! > "+dir+"/child; wait")
	caller := exec.Command(os.Args[0], "-test.run=^TestKilledCaller$")
	caller.Env = append(os.Environ(), "HOOKS_TEST_CALLER="+dir)
	caller.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 500 {
		if _, err = os.Stat(dir + "/child"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // the number is written
	if err := errors.Join(err, caller.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = caller.Wait() // it was killed
	gone(t, dir+"/hook")
	gone(t, dir+"/child")
	if pid, isAlive := process(t, dir+"/session"); !isAlive {
		t.Error("what has a session of its own is gone")
	} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// process returns the process whose number is in a file, and whether it lives.
func process(t *testing.T, file string) (pid int, isAlive bool) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return pid, err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestInterrupted: where somebody ended a hook it is not the hook that is to be mended,
// and of those that see the end the rest is named.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"/start/x", "/stop/3", "/stop/2", "/stop/1"} {
		script(t, dir+name, "touch "+dir+"/ran$(basename $0); echo slow >&2; sleep 1000")
	}
	interrupt := func() (context.Context, func()) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := &fault.Error{What: errors.New("interrupted"), Code: fault.CodeInterrupted}
		late := time.AfterFunc(300*time.Millisecond, func() { cancel(why) })
		return ctx, func() { late.Stop() }
	}
	ctx, stop := interrupt()
	defer stop()
	r := Runner{Dirs: []string{dir}}
	_, err := r.Start(ctx, State{})
	want(t, err, "start/x: interrupted")
	if text := fault.Text("", err, false); strings.Contains(text, "hint") || fault.Code(err) != fault.CodeInterrupted {
		t.Errorf("exit %d: %s", fault.Code(err), text)
	}
	if _, err = r.Start(ctx, State{}); fault.Code(err) != fault.CodeInterrupted {
		t.Errorf("of a context that has ended: %v", err)
	}
	ctx, stop = interrupt()
	defer stop()
	_, err = r.Stop(ctx, State{})
	want(t, err, "run hook "+dir+"/stop/3: interrupted", "run hooks "+dir+"/stop/2, "+dir+"/stop/1: interrupted")
	if left, _ := filepath.Glob(dir + "/ran*"); len(left) != 2 {
		t.Errorf("%s", left)
	}
}

// TestWaiting: somebody is told of a hook that takes long.
func TestWaiting(t *testing.T) {
	dir := t.TempDir()
	script(t, dir+"/start/1", "exit 0")
	script(t, dir+"/start/2", "sleep 1.5")
	told := make(chan string, 10)
	if _, err := (Runner{Dirs: []string{dir}, Waiting: func(path string) { told <- path }}).Start(t.Context(), State{}); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || <-told != dir+"/start/2" {
		t.Error("nobody was told of 2 alone")
	}
}

// TestStop: all are run, the last first, whatever fails.
func TestStop(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		script(t, fmt.Sprintf("%s/stop/%d", dir, i), fmt.Sprintf("grep -q '\"exitCode\":7' && echo %d >> %s/order; exit %d", i, dir, i%2))
	}
	code := 7
	got, err := Runner{Dirs: []string{dir}}.Stop(t.Context(), State{ExitCode: &code})
	want(t, err, "stop/1: exit status 1")
	if order, _ := os.ReadFile(dir + "/order"); string(order) != "2\n1\n0\n" || len(got.Ran) != 3 {
		t.Errorf("%q %+v", order, got.Ran)
	}
}

// TestTrust: files, links and directories that others could have written are refused,
// with what to type.
func TestTrust(t *testing.T) {
	stranger := uint32(4242)
	for name, test := range map[string]struct {
		root   bool // needs root
		damage func(dir string) error
		want   []string
	}{
		"file":            {false, func(d string) error { return os.Chmod(d+"/start/x", 0o775) }, []string{"/start/x is not to be trusted", "0775", "chmod go-w"}},
		"directory":       {false, func(d string) error { return os.Chmod(d+"/start", 0o757) }, []string{"/start is not", "chmod go-w"}},
		"directory above": {false, func(d string) error { return os.Chmod(d, 0o777) }, []string{"chmod go-w"}},
		"sticky":          {false, func(d string) error { return os.Chmod(d+"/start", 0o777|os.ModeSticky) }, []string{"/start is not"}},
		"sticky above":    {false, func(d string) error { return os.Chmod(d, 0o777|os.ModeSticky) }, nil},
		"owner":           {true, func(d string) error { return os.Chown(d+"/start/x", int(stranger), 0) }, []string{"belongs to the user 4242", "chown root"}},
		"owner above":     {true, func(d string) error { return os.Chown(d, int(stranger), 0) }, []string{"4242"}},
		"link": {false, func(d string) error {
			return errors.Join(os.Mkdir(d+"/open", 0o700), os.Rename(d+"/start/x", d+"/open/y"), os.Chmod(d+"/open", 0o777), os.Symlink("../open/y", d+"/start/x"))
		}, []string{"/open is not"}},
		"link of link": {false, func(d string) error {
			return errors.Join(os.Mkdir(d+"/open", 0o700), os.Rename(d+"/start/x", d+"/y"), os.Symlink("../y", d+"/open/z"), os.Chmod(d+"/open", 0o777), os.Symlink(d+"/open/./z", d+"/start/x"))
		}, []string{"/open is not"}},
		"good link": {false, func(d string) error {
			return errors.Join(os.Mkdir(d+"/lib", 0o755), os.Rename(d+"/start/x", d+"/lib/y"), os.Symlink(".././lib//y", d+"/start/x"))
		}, nil},
		"loop": {false, func(d string) error { return errors.Join(os.Remove(d+"/start/x"), os.Symlink("x", d+"/start/x")) }, []string{"too many levels"}},
		"dangling": {false, func(d string) error {
			return errors.Join(os.Remove(d+"/start/x"), os.Symlink("/nonexistent", d+"/start/x"))
		}, []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				t.Skip("needs root: it gives files away")
			}
			dir := t.TempDir()
			script(t, dir+"/start/x", "touch "+dir+"/ran; exit 0")
			if err := test.damage(dir); err != nil {
				t.Fatal(err)
			}
			_, err := Runner{Dirs: []string{dir}}.Start(t.Context(), State{})
			_, ran := os.Stat(dir + "/ran")
			if test.want == nil {
				if err != nil || ran != nil {
					t.Error(err, ran)
				}
				return
			}
			want(t, err, test.want...)
			if ran == nil {
				t.Error("it ran")
			}
		})
	}
}

// public makes a directory that another user can reach, unlike t.TempDir.
func public(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hooks-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestCredential: root runs hooks as the user, and trusts that user's files then only.
func TestCredential(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	dir, out := public(t), public(t)
	script(t, dir+"/start/x", "id -u > "+out+"/id; id -G >> "+out+"/id; grep -c CapEff:.0000000000000000 /proc/self/status >> "+out+"/id")
	if err := errors.Join(os.Chown(out, 4242, 4243), os.Chown(dir+"/start/x", 4242, 4243), os.Chown(dir, 4242, 4243)); err != nil {
		t.Fatal(err)
	}
	r := Runner{Dirs: []string{dir}}
	_, err := r.Start(t.Context(), State{})
	want(t, err, "belongs to the user 4242")
	r.Credential = &syscall.Credential{Uid: 4242, Gid: 4243}
	if _, err := r.Start(t.Context(), State{}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out + "/id"); err != nil || string(b) != "4242\n4243\n1\n" {
		t.Errorf("%q %v", b, err)
	}
}

// BenchmarkRunner: what the runner costs a container that has no hooks, and what a hook
// that does nothing costs.
func BenchmarkRunner(b *testing.B) {
	none, one := b.TempDir(), b.TempDir()
	if err := os.MkdirAll(one+"/prepare", 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Symlink("/bin/true", one+"/prepare/x"); err != nil {
		b.Fatal(err)
	}
	for name, dir := range map[string]string{"none": none, "true": one} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := (Runner{Dirs: []string{dir}}).Prepare(b.Context(), State{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
