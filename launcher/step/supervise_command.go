package step

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// scriptFile is a batch script's name, which is Slurm's.
const scriptFile = "slurm_script"

func (s *supervisor) writeScript() error {
	if len(s.spec.Program.Script) == 0 {
		return nil
	}
	if err := os.WriteFile(filepath.Join(s.Dir, scriptFile), s.spec.Program.Script, 0o700); err != nil {
		return fmt.Errorf("write script: %w", err)
	}
	return os.Chmod(filepath.Join(s.Dir, scriptFile), 0o700) // whatever the umask
}

// args are the command of a rank, where the script has a name.
func (s *supervisor) args(script string) []string {
	var args []string
	if len(s.spec.Program.Script) > 0 {
		args = append(args, script)
	}
	return append(args, texts(s.spec.Program.Args)...)
}

// readCommands reads what each rank of the node runs, where they run different programs.
func (s *supervisor) readCommands() error {
	p := &s.spec.Program
	if p.MultiProg == nil {
		return nil
	}
	all, err := rank.Commands(p, s.spec.Tasks, s.spec.Nodes[s.node].Ranks)
	if err != nil {
		return fault.Usage(err, "")
	}
	for i, m := range s.ranks {
		m.args = all[i]
	}
	return nil
}

// isRank says whether a rank is started, and not something beside one.
func (l *launch) isRank() bool { return l.files == l.m.files }

// change makes of a rank's environment that of what is started.
func (l *launch) change(environ []string) []string {
	environ = mergeEnv(environ, l.environ)
	for _, name := range l.unset {
		environ = withoutVariable(environ, name)
	}
	return environ
}

// epilogTime is how long what runs after a rank may take, as with Slurm.
const epilogTime = 5 * time.Second

// maxProlog bounds what a program before a rank may say.
const maxProlog = 1 << 20

// prolog runs the program that is to run before a rank, and does to the rank's launch what it says
// on its standard output: export NAME=VALUE, unset NAME, print TEXT. Its errors are the rank's
// output. ok is false if the rank is not to start, and then end is how it ends.
func (s *supervisor) prolog(ctx context.Context, l *launch, env *rank.Env) (end exited, ok bool) {
	path := s.spec.Program.TaskProlog
	if path == "" {
		return exited{}, true
	}
	var said bytes.Buffer
	end, err := s.beside(ctx, l.m, env, path, nil, 0, func(b []byte) {
		said.Write(b[:min(len(b), maxProlog-said.Len())])
	})
	if err != nil {
		s.sayOf(l.m, "error: run_command: user task_prolog can not be executed (%s) %v", path, err)
		end = exited{code: 1}
	}
	if end.code != 0 || end.signal != 0 {
		s.sayOf(l.m, "error: --task-prolog failed status=%d", max(end.code, 1))
		return end, false
	}
	for line := range strings.SplitSeq(said.String(), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimLeft(rest, " \t")
		switch word {
		case "print":
			if rest != "" {
				l.m.files.putOut(rest + "\n")
			}
		case "export":
			if name, value, ok := strings.Cut(rest, "="); ok && strings.TrimSpace(name) != "" {
				l.environ = append(l.environ, strings.TrimSpace(name)+"="+value)
			}
		case "unset":
			l.unset = append(l.unset, strings.TrimSpace(rest))
		}
	}
	return exited{}, true
}

// epilog runs the program that is to run after a rank, whose end it does not change.
func (s *supervisor) epilog(ctx context.Context, l *launch, env *rank.Env) {
	path := s.spec.Program.TaskEpilog
	if path == "" {
		return
	}
	end, err := s.beside(ctx, l.m, env, path, l, epilogTime, nil)
	switch {
	case err != nil:
		s.sayOf(l.m, "error: Could not run user task_epilog [%s]: %v", path, err)
	case end.signal != 0:
		s.sayOf(l.m, "error: TaskEpilog failed status=%d", end.signal)
	case end.code != 0:
		s.sayOf(l.m, "error: TaskEpilog failed status=%d", end.code<<8)
	}
}

// sayOf tells a rank's user of it, in the words of Slurm's daemon.
func (s *supervisor) sayOf(m *member, format string, args ...any) {
	m.files.say("slurmstepd-" + s.Node + ": " + fmt.Sprintf(format, args...) + "\n")
}

// beside runs a program where a rank runs, with the environment of as, and waits for it, at most
// for limit if that is not 0. Its standard output goes to stdout, if to anybody.
func (s *supervisor) beside(ctx context.Context, m *member, env *rank.Env, path string, as *launch, limit time.Duration, stdout func([]byte)) (exited, error) {
	if !filepath.IsAbs(path) {
		return exited{}, errors.New("it is not a full path")
	}
	files := &rankFiles{s: s, m: &member{rank: m.rank, local: m.local}}
	for i, to := range []func([]byte){stdout, func(b []byte) { m.files.put(string(b)) }} {
		if to == nil {
			continue
		}
		var err error
		if files.child[1+i], err = files.pipe(to, []stdio.Type{stdio.Stdout, stdio.Stderr}[i]); err != nil {
			files.handed()
			return exited{}, err
		}
	}
	l := launch{m: m, files: files, args: []string{path}}
	if as != nil {
		l.environ, l.unset = as.environ, as.unset
	}
	p, err := s.runner.start(ctx, l, env)
	files.handed()
	if err != nil {
		return exited{}, err
	}
	s.isThere(m, p)
	if limit > 0 {
		t := time.AfterFunc(limit, func() { _ = p.Signal(syscall.SIGKILL) }) // it may have ended
		defer t.Stop()
	}
	end, err := p.Wait()
	s.mu.Lock()
	m.process = nil
	s.mu.Unlock()
	files.drain(outputTime)
	return end, err
}
