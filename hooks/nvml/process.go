package nvml

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// process is one running helper.
type process struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc // kills its process group
	in     *os.File           // our ends of its pipes
	out    *os.File
	lines  *bufio.Reader
	said   *proc.Excerpt // on standard error; ours once gone is closed
	gone   chan struct{} // closed when it was waited for
}

// startProcess starts the helper with nothing but two pipes and the environment in opt.
func startProcess(opt Options, args ...string) (*process, error) {
	if opt.Library != "" {
		args = append([]string{"-library", opt.Library}, args...)
	}
	if opt.Proc != "" {
		args = append([]string{"-proc", opt.Proc}, args...)
	}
	// Not a caller's context: the helper outlives the question that it was started for.
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{cmd: exec.CommandContext(ctx, opt.Program, args...), cancel: cancel, said: &proc.Excerpt{}, gone: make(chan struct{})}
	proc.Confine(p.cmd)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stderr = "/", append([]string{}, opt.Env...), p.said
	stdin, in, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, errors.Join(err, stdin.Close(), in.Close())
	}
	p.in, p.out, p.lines = in, out, bufio.NewReader(out)
	p.cmd.Stdin, p.cmd.Stdout = stdin, stdout
	err = p.cmd.Start()
	_, _ = stdin.Close(), stdout.Close()
	if err != nil {
		cancel()
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	// It ends with the helper, which a driver may keep in the kernel after its death; only
	// then does this goroutine outlive Close.
	go func() {
		_ = p.cmd.Wait() // see ending
		close(p.gone)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// talk writes a line and reads one, until deadline or the end of ctx; then the error is
// os.ErrDeadlineExceeded.
func (p *process) talk(ctx context.Context, line []byte, deadline time.Time) ([]byte, error) {
	if err := errors.Join(p.in.SetDeadline(deadline), p.out.SetDeadline(deadline)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		_, _ = p.in.SetDeadline(now), p.out.SetDeadline(now) // closed ones need none
	})
	defer stop()
	if _, err := p.in.Write(line); err != nil {
		return nil, err
	}
	return readLine(p.lines)
}

// readLine returns the next line, of at most maxLine bytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrWrong, maxLine)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// kill ends the helper and all that it started, if the kernel lets it.
func (p *process) kill() {
	p.cancel()
	_, _ = p.in.Close(), p.out.Close() // nothing was buffered
}

// isGone waits until the helper has ended, but no longer than d.
func (p *process) isGone(d time.Duration) bool {
	select {
	case <-p.gone:
		return true
	default:
	}
	if d <= 0 {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.gone:
		return true
	case <-t.C:
		return false
	}
}

// remains says why the helper, which was killed, is still there.
func (p *process) remains(procDir string) string {
	if procDir == "" {
		procDir = "/proc"
	}
	b, _ := os.ReadFile(filepath.Join(procDir, strconv.Itoa(p.pid()), "stat"))
	// The state follows the command, which is in parentheses and may contain some.
	if i := strings.LastIndex(string(b), ") "); i >= 0 && strings.HasPrefix(string(b)[i+2:], "D") {
		return fmt.Sprintf("process %d, which asks, is stuck in the kernel and cannot be killed", p.pid())
	}
	return fmt.Sprintf("process %d, which asks, was killed and has not ended yet", p.pid())
}

// ending says how the helper ended, and the first line that it said on standard error.
// It is gone.
func (p *process) ending() (how, said string) {
	how = p.cmd.ProcessState.String()
	for line := range strings.Lines(string(p.said.Bytes())) {
		if said = strings.TrimSpace(line); said != "" {
			break
		}
	}
	if len(said) > 300 {
		said = strings.ToValidUTF8(said[:300], "") + "..."
	}
	return how, said
}

// crash says how a helper ended that ended its output, which err is about.
func (p *process) crash(err error) error {
	if !p.isGone(time.Second) {
		return fmt.Errorf("%w: it closed its output: %w", ErrCrashed, err)
	}
	how, said := p.ending()
	return &fault.Error{
		What:  fmt.Errorf("%w: %s", ErrCrashed, how),
		Cause: said,
		Hint:  "try it by hand: " + p.cmd.Path + " inventory",
	}
}
