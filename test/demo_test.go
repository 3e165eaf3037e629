package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demoPatience is how long a demo may take on a machine that does much else.
const demoPatience = 4 * time.Minute

// TestDemo is "make demo DEMO=quick", of an ordinary user, and of root, for whom nodes are hosts of
// their own; after one that was killed, and one that was interrupted.
func TestDemo(t *testing.T) {
	t.Parallel()
	bin := clusterPrograms(t)
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./demo", "../examples/iris")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	examples := publicDir(t)
	if err := os.CopyFS(examples, os.DirFS("../examples")); err != nil {
		t.Fatal(err)
	}
	users := map[string]bool{"user": false}
	if os.Geteuid() == 0 {
		users["root"] = true
	}
	for name, root := range users {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPersonWith(t, filepath.Join(bin, "gangway"))
			if root {
				if err := os.Chown(filepath.Join(p.dir, "home"), 0, 0); err != nil {
					t.Fatal(err)
				}
			}
			r := &demoRun{person: p, examples: examples, root: root}
			r.killed(t)
			r.interrupted(t)
			r.whole(t)
			r.nothing(t)
		})
	}
}

// demoRun is who has the demo, and where.
type demoRun struct {
	*person
	examples string
	root     bool
}

func (r *demoRun) start(t *testing.T) *background {
	t.Helper()
	cmd := exec.Command(filepath.Join(filepath.Dir(r.bin), "demo"), "-quick", "-stay=false", "-bin", filepath.Dir(r.bin), "-examples", r.examples, "-lost-after", "15s")
	cmd.Dir = filepath.Join(r.dir, "home")
	cmd.Env = append(r.environ(), "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "XDG_CACHE_HOME="+filepath.Join(r.dir, "home", "cache"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.cred}
	if r.root {
		cmd.SysProcAttr.Credential = nil
	}
	return inBackground(t, cmd)
}

// reaches waits until a demo has printed something.
func (r *demoRun) reaches(t *testing.T, b *background, text string) {
	t.Helper()
	for deadline := time.Now().Add(demoPatience); !strings.Contains(b.out.String(), text); time.Sleep(20 * time.Millisecond) {
		if b.ended() || time.Now().After(deadline) {
			t.Fatalf("the demo does not reach %q:\n%s", text, b.out.String())
		}
	}
}

func (r *demoRun) killed(t *testing.T) {
	b := r.start(t)
	r.reaches(t, b, "epoch 2 of 15")
	b.signal(t, syscall.SIGKILL)
	r.gone(t)
}

func (r *demoRun) interrupted(t *testing.T) {
	b := r.start(t)
	r.reaches(t, b, "epoch 2 of 20") // of the run that loses a node
	b.signal(t, syscall.SIGINT)
	b.ends(t, 130)
	r.nothing(t)
}

func (r *demoRun) whole(t *testing.T) {
	b := r.start(t)
	r.reaches(t, b, "== summary")
	b.ends(t, 0)
	for _, want := range []string{
		`> step 1\.0: .* nodes are ready`, `0: epoch 15 of 15: loss 0\.\d+, held-out accuracy 9\d\.\d %`,
		`train +COMPLETED +\d\d:\d\d:\d\d +\d\d:\d\d\.\d+ .* n\[1-4\]`, `! node n4 loses its power`, `resumes after epoch`, `train +COMPLETED .* n\[1-3,5\]`,
		`100 outputs`, `(?m)\(Dependency\)`, `2\d of 30 held-out rows are right`,
		`(?m)^ +[\d.]+ s +[\d.]+ s  an array of 100 elements`,
	} {
		if !regexp.MustCompile(want).MatchString(b.out.String()) {
			t.Errorf("it does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(b.out.String())
	}
}

// nothing: a demo that has ended leaves neither processes nor files of its run.
func (r *demoRun) nothing(t *testing.T) {
	t.Helper()
	r.gone(t)
	left, err := filepath.Glob(filepath.Join(r.dir, "home", "cache", "gangway-demo", "run-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// gone waits until no process of it is left; those that a killed one has started end by themselves.
func (r *demoRun) gone(t *testing.T) {
	t.Helper()
	of := filepath.Join(r.dir, "home", "cache", "gangway-demo")
	for deadline := time.Now().Add(demoPatience); ; time.Sleep(50 * time.Millisecond) {
		var left []string
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		for _, proc := range all {
			command, _ := os.ReadFile(proc + "/cmdline") // it may have ended
			environ, _ := os.ReadFile(proc + "/environ")
			if strings.Contains(string(command)+string(environ), of) {
				left = append(left, strings.ReplaceAll(string(command), "\x00", " "))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left:\n%s", strings.Join(left, "\n"))
		}
	}
}
