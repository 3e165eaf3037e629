package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// tmuxScreen is a terminal of tmux's, with a server of its own.
type tmuxScreen struct {
	c               *cluster
	t               *testing.T
	program, socket string
}

// newTmux runs a shell's command in one.
func newTmux(t *testing.T, c *cluster, command string, size ...string) *tmuxScreen {
	t.Helper()
	program, err := exec.LookPath("tmux")
	if err != nil {
		t.Skip("needs tmux")
	}
	term := &tmuxScreen{c, t, program, filepath.Join(c.mkdir(t, "tmux"), fmt.Sprint(len(command)))}
	term.tmux(append([]string{"-f", "/dev/null", "new-session", "-d"}, append(size, command)...)...)
	t.Cleanup(func() { _ = term.command("kill-server").Run() }) // it may have ended
	return term
}

func (x *tmuxScreen) command(args ...string) *exec.Cmd {
	cmd := x.c.command("version")
	cmd.Path, cmd.Args = x.program, append([]string{"tmux", "-S", x.socket}, args...)
	cmd.Env = append(cmd.Env, "LC_ALL=C.UTF-8", "TERM=screen-256color")
	return cmd
}

func (x *tmuxScreen) tmux(args ...string) string {
	x.t.Helper()
	o := outcomeOf(x.t, x.command(args...))
	if o.code != 0 {
		x.t.Fatalf("tmux %q: exit %d\n%s", args, o.code, o.err)
	}
	return o.out
}

// shows waits until the screen matches.
func (x *tmuxScreen) shows(pattern string, args ...string) string {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(2 * clusterPatience); ; time.Sleep(50 * time.Millisecond) {
		screen := x.tmux(append([]string{"capture-pane", "-p"}, args...)...)
		if re.MatchString(screen) {
			return screen
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("the screen does not come to match %q:\n%s", pattern, screen)
		}
	}
}

// testClusterTop is "gangway top", as people see it.
func testClusterTop(t *testing.T, bin string) {
	c := newCluster(t, bin, "--gres", "gpu:h100:4", "--cpus-per-node", "4")
	o := outcomeOf(t, c.command("top"))
	o.want(t, 2, "", "(?s)not a terminal.*hint: +gangway nodes and gangway queue")
	long := c.submit(t, "srun --label sh -c 'echo begun; while ! test -e go; do sleep 0.2; done; echo goes on'", "-N2", "-J", "long", "--gres=gpu:2", "-t", "10", "-o", "out-%j")
	waits := c.submit(t, "echo it was its turn", "-N4", "--exclusive", "-J", "waits", "-t", "1", "-o", "out-%j")
	x := newTmux(t, c, "NO_COLOR=1 "+c.bin+" top; echo it ended with $?; read x", "-x", "110", "-y", "32")

	x.shows(`cluster state +4 nodes +CPUs \d of 16 +GPUs 4 of 16 +1 running, 1 waiting`)
	x.shows(`(?m)^n1 +mixed .* 2 of 4 decl\. +` + long + `$`)
	x.shows(`(?m)^> ` + long + ` +long +\S+ +running +00:0\d:\d\d +2 +n\[1-2\]$`)
	x.shows(`(?m)^` + waits + ` +waits +\S+ +pending +- +4 +Resources, starts \d\d:\d\d:\d\d$`)
	x.shows(`(?m)^job ` + long + ` long, running$`)
	x.shows(`(?m)^0:1 +n2 +0\.\d\d CPUs +\d+[KM] ▁▁`)
	x.shows(`(?m)^[01]: begun$`)
	if screen := x.tmux("capture-pane", "-p", "-e"); strings.Contains(screen, "\x1b[") {
		t.Errorf("NO_COLOR, and there is colour:\n%q", screen)
	}
	// A job that waits has no output; what happens is pushed.
	x.tmux("send-keys", "Down")
	x.shows(`(?m)^> ` + waits + ` +waits(.*\n)*job ` + waits + ` waits, pending(.*\n)*nothing is written to \S+/out-` + waits + `$`)
	if err := os.WriteFile(filepath.Join(c.dir, "home", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	x.shows(`(?m)^` + long + ` +long +\S+ +completed`)
	x.shows(`(?m)^it was its turn$`)
	x.tmux("send-keys", "Down")
	x.shows(`(?m)^[01]: goes on$`)

	x.tmux("resize-window", "-x", "60", "-y", "14")
	small := x.shows(`(?m)\A.{1,60}\n(.{0,60}\n){12}up/down: another job   q: quit$`)
	if !strings.Contains(small, "waits") {
		t.Errorf("a small screen has no queue:\n%s", small)
	}
	// It says that the controller is away, and goes on with it.
	c.stop(t)
	x.shows(`(?m)^the controller does not answer: `)
	c.start(t)
	x.shows(`(?m)^up/down: another job   q: quit$`)
	x.shows(`CPUs 0 of 16`)
	x.tmux("send-keys", "q")
	x.shows(`(?m)^it ended with 0$`)
	testTopColour(t, c)
	testUpTerminal(t, c)
}

// testUpTerminal: who runs a cluster on a terminal is told what to type in another one, and sees what
// becomes of jobs.
func testUpTerminal(t *testing.T, c *cluster) {
	x := newTmux(t, c, "trap : INT; "+c.bin+" up --nodes 2 --state-dir '"+filepath.Join(c.dir, "home", "the second")+"' --name second; echo it ended with $?; read x", "-x", "200", "-y", "24")
	screen := x.shows(`in another terminal: export PATH=\S.* GANGWAY_CLUSTER=second\n`, "-J")
	_, use, _ := strings.Cut(screen, "in another terminal: ")
	use, _, _ = strings.Cut(use, "\n")
	cmd := c.command("version")
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", use + "; sinfo -h -o %D; sbatch -J seen --wrap hostname"}
	o := outcomeOf(t, cmd)
	o.want(t, 0, `^2\nSubmitted batch job 1\n$`, "")
	x.shows(`(?m)^\d\d:\d\d:\d\d job 1 seen: running on n1$`)
	x.shows(`(?m)^\d\d:\d\d:\d\d job 1 seen: completed on n1$`)
	x.tmux("send-keys", "C-c")
	x.shows(`(?m)^it ended with 0$`)
}

// testTopColour: with colour the selected job is inverted; Ctrl-C ends it, and leaves the terminal as
// it was.
func testTopColour(t *testing.T, c *cluster) {
	id := c.submit(t, "sleep 1000", "-J", "bright")
	x := newTmux(t, c, c.bin+" top "+id+"; echo it ended with $?; stty -a; read x", "-x", "100", "-y", "24")
	x.shows(`\x1b\[(\d+;)*7m(\x1b\[[0-9;]*m)*`+id+` +bright`, "-e")
	x.tmux("send-keys", "C-c")
	x.shows(`(?m)^it ended with 0$`)
	if screen := x.shows(`echo`); !regexp.MustCompile(`[^-]echo\b`).MatchString(screen) || strings.Contains(screen, "-icanon") {
		t.Errorf("the terminal is left:\n%s", screen)
	}
	c.do(t, "scancel", id)
}
