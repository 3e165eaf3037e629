package step

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
	"github.com/gangway-hpc/gangway/squashfs"
)

// superviseArg is the argument with which this program is a supervisor, rankArg that with
// which it is a rank.
const (
	superviseArg = "supervise-for-test"
	rankArg      = "rank-for-test"
)

// superviseMain is the process that agents start.
func superviseMain(dir string) int {
	o := SuperviseOptions{
		Dir: dir, Node: "n1", Lease: time.Minute, Marker: "GANGWAY_STEP=test/n1/17.1.0.1", Program: "/bin/sh",
		Programs: filepath.Join(filepath.Dir(dir), "programs"),
		Log:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if ms, err := strconv.Atoi(os.Getenv("LEASE")); err == nil {
		o.Lease = time.Duration(ms) * time.Millisecond
	}
	o.Container = func(spec *job.StepSpec, _ func(done, total int64)) (Options, func(), error) {
		if spec.Program.Container[0] == "--missing" {
			return Options{}, nil, errors.New("open image: there is none")
		}
		c := imageOptions(os.Getenv("IMAGE"), os.Getenv("RUN"))
		if spec.Program.Container[0] == "--hang" {
			time.Sleep(time.Minute)
		}
		return c, func() {}, nil
	}
	if err := Supervise(contextOfSignals(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// rankMain is a program that does what its arguments say, one after the other.
func rankMain(args []string) int {
	for i := range args {
		word, value, _ := strings.Cut(args[i], "=")
		switch word {
		case "env":
			fmt.Println(value + "=" + os.Getenv(value))
		case "out":
			fmt.Println(value)
		case "pid":
			fmt.Println("own number:", os.Getenv("SLURM_TASK_PID") == strconv.Itoa(os.Getpid()))
		case "cpus":
			fmt.Println("cpus", mayUse())
		case "memory": // MiB that are used
			n, _ := strconv.Atoi(value)
			b := make([]byte, n<<20)
			for i := range b {
				b[i] = byte(i)
			}
			time.Sleep(time.Duration(len(b))) // 0.3 s, so that all of it is needed
		case "limit":
			var l unix.Rlimit
			err := unix.Getrlimit(limitNumbers()[value], &l)
			fmt.Println(value, l.Cur, err)
		case "err":
			fmt.Fprintln(os.Stderr, value)
		case "cat":
			if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
				return 9
			}
		case "file":
			b, err := os.ReadFile(value)
			fmt.Printf("%s%v\n", b, err)
		case "fill":
			n, _ := strconv.Atoi(value)
			block := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
			for range n {
				if _, err := os.Stdout.Write(block); err != nil {
					return 9
				}
			}
		case "size": // of the terminal that stdout is, and whether that is this session's
			size, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
			if err != nil {
				size = &unix.Winsize{}
			}
			session, err := unix.IoctlGetInt(1, unix.TIOCGSID)
			fmt.Println("size", size.Row, size.Col, err == nil && session == os.Getpid())
		case "sleep":
			d, _ := time.ParseDuration(value)
			time.Sleep(d)
		case "spin": // processor time that is used
			d, _ := time.ParseDuration(value)
			for used := cpuTime(); cpuTime() < used+d; {
				_ = bytes.Repeat([]byte("x"), 1000)
			}
		case "child": // that outlives this one, in a session of its own
			cmd := exec.Command("/proc/self/exe", rankArg, "sleep=1m")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Start(); err != nil {
				return 9
			}
			fmt.Println("child", cmd.Process.Pid)
		case "trap": // 5: the signal came, and the child lives; 6: the child has ended
			return trapMain()
		case "exit":
			n, _ := strconv.Atoi(value)
			return n
		case "exitrank":
			if os.Getenv("RANK") == value {
				return 3
			}
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Minute)
		}
	}
	return 0
}

// cpuTime is the processor time of this process.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return time.Hour
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// trapMain waits for SIGHUP, and says whether its child had it, too.
func trapMain() int {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGHUP)
	cmd := exec.Command("/proc/self/exe", rankArg, "sleep=1m")
	if err := cmd.Start(); err != nil {
		return 9
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	fmt.Println("ready")
	<-got
	select {
	case <-ended:
		return 6
	case <-time.After(200 * time.Millisecond): // it would have had the signal at the same time
		_ = cmd.Process.Kill()
		return 5
	}
}

// testStep is a step of a test, on node n1.
type testStep struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
	c   *control.Conn
	log bytes.Buffer
}

// stepSpec is a step of some ranks.
func stepSpec(ranks int, args ...string) *job.StepSpec {
	s := &job.StepSpec{
		Key: job.StepKey{Job: 17, Attempt: 1, Step: 0, Try: 1}, Cluster: "test", User: "ann", UID: uint32(os.Geteuid()), Name: "x",
		Job: job.JobFacts{
			Name: "train", Partition: "main", Nodes: []string{"n1", "n2"}, Addrs: []string{"127.0.0.1", "127.0.0.1"},
			CPUsPerNode: []int{8, 8}, TasksPerNode: []int{ranks, ranks},
		},
		Tasks: ranks, Grace: 5 * job.Second, Nodes: []job.StepNode{{Name: "n1", Addr: "127.0.0.1", CPUs: 8}},
		Program: job.Program{Umask: 0o022, Environ: [][]byte{[]byte("PATH=/usr/bin:/bin"), []byte("HOME=/tmp")}},
	}
	for r := range ranks {
		s.Nodes[0].Ranks = append(s.Nodes[0].Ranks, r)
	}
	for _, a := range args {
		s.Program.Args = append(s.Program.Args, []byte(a))
	}
	return s
}

// command makes the ranks run rankMain.
func command(s *job.StepSpec, words ...string) *job.StepSpec {
	program := "/proc/self/exe"
	if len(s.Program.Container) > 0 {
		program = "/rank"
	}
	s.Program.Args = [][]byte{[]byte(program), []byte(rankArg)}
	for _, w := range words {
		s.Program.Args = append(s.Program.Args, []byte(w))
	}
	return s
}

// rankImage is an image that has this program as /rank.
func rankImage(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rank.sqsh")
	w, err := squashfs.CreateNew(name, squashfs.WriterOptions{Compression: squashfs.Uncompressed})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	st, err := program.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(squashfs.Entry{Path: "rank", Mode: 0o100755, Size: st.Size()}, program); err != nil {
		t.Fatal(err)
	}
	for _, library := range libraries(t, program) {
		b, err := os.ReadFile(library)
		if err == nil {
			err = w.Add(squashfs.Entry{Path: strings.TrimPrefix(library, "/"), Mode: 0o100755, Size: int64(len(b))}, bytes.NewReader(b))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return name
}

// libraries are what a program needs besides: none, but under the race detector.
func libraries(t *testing.T, program *os.File) []string {
	t.Helper()
	f, err := elf.NewFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(p.Open())
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, strings.TrimRight(string(b), "\x00"))
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, pattern := range []string{"/lib/*-linux-gnu/", "/lib64/", "/usr/lib64/"} {
			if all, _ := filepath.Glob(pattern + name); len(all) > 0 {
				found = append(found, all[0])
				break
			}
		}
	}
	return found
}

// supervise starts a supervisor, which is ended with the test, and listens to it.
func supervise(t *testing.T, spec *job.StepSpec, environ ...string) *testStep {
	t.Helper()
	s := startSupervisor(t, spec, environ...)
	s.c = s.dial()
	s.send(control.Request{Watch: true})
	return s
}

// startSupervisor starts a supervisor, which may end before anybody can speak to it.
func startSupervisor(t *testing.T, spec *job.StepSpec, environ ...string) *testStep {
	t.Helper()
	s := &testStep{t: t, dir: filepath.Join(t.TempDir(), "17.1.0.1")}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if len(spec.Program.Cwd) == 0 {
		spec.Program.Cwd = []byte(t.TempDir())
	}
	if err := fsx.WriteFile(t.Context(), filepath.Join(s.dir, control.SpecFile), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(spec)
	}); err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command("/proc/self/exe", superviseArg, s.dir)
	s.cmd.Stderr = &s.log
	s.cmd.Env = append(os.Environ(), environ...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- s.cmd.Wait() }()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	return s
}

// kept waits for the end that is on disk.
func (s *testStep) kept() *job.StepEnd {
	s.t.Helper()
	for range 6000 {
		b, err := os.ReadFile(filepath.Join(s.dir, control.EndFile))
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		var end job.StepEnd
		if err := json.Unmarshal(b, &end); err != nil {
			s.t.Fatal(err)
		}
		return &end
	}
	s.t.Fatal("the step has not ended")
	return nil
}

func (s *testStep) dial() *control.Conn {
	s.t.Helper()
	for range 1000 {
		if c, err := control.Dial(s.dir); err == nil {
			s.t.Cleanup(func() { _ = c.Close() })
			return c
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Fatal("the supervisor does not listen")
	return nil
}

func (s *testStep) send(r control.Request) {
	s.t.Helper()
	if err := s.c.Send(r); err != nil {
		s.t.Fatal(err)
	}
}

// await waits for an event that is not of progress.
func (s *testStep) await() control.Event {
	s.t.Helper()
	for {
		if err := s.c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			s.t.Fatal(err)
		}
		var e control.Event
		if err := s.c.Receive(&e); err != nil {
			s.t.Fatalf("wait for an event: %v", err)
		}
		if e.Progress == nil {
			return e
		}
	}
}

// begin prepares and starts.
func (s *testStep) begin() {
	s.t.Helper()
	e := s.await()
	if e.Prepared == nil {
		s.t.Fatalf("not prepared: %+v %+v", e.Ended, e.Ended.Fault)
	}
	s.send(control.Request{Start: &control.Start{MasterAddr: "127.0.0.1", MasterPort: e.Prepared.Port}})
	if e := s.await(); e.Started == nil || e.Started.At == 0 {
		s.t.Fatalf("not started: %+v", e)
	}
}

// ended waits for the end, which is on disk by then.
func (s *testStep) ended() *job.StepEnd {
	s.t.Helper()
	e := s.await()
	if e.Ended == nil {
		s.t.Fatalf("not ended: %+v", e)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, control.EndFile))
	var kept job.StepEnd
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil || fmt.Sprint(kept.Ranks) != fmt.Sprint(e.Ended.Ranks) {
		s.t.Errorf("%s has %s, %v", control.EndFile, b, err)
	}
	return e.Ended
}

// io is a client's connection.
type ioConn struct {
	*control.Conn
	t *testing.T
	r *stdio.Reader
}

func (s *testStep) io(h stdio.Hello) *ioConn {
	s.t.Helper()
	c := s.dial()
	b, err := json.Marshal(h)
	if err == nil {
		err = c.Send(control.Request{IO: b})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return &ioConn{c, s.t, stdio.NewReader(c.Reader())}
}

func (s *testStep) exec(e stdio.Exec) *ioConn {
	s.t.Helper()
	c := s.dial()
	b, err := json.Marshal(e)
	if err == nil {
		err = c.Send(control.Request{Exec: b})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return &ioConn{c, s.t, stdio.NewReader(c.Reader())}
}

// output is all that comes until the end: the streams by rank and name, and the kinds of
// the other frames.
func (c *ioConn) output() (streams map[string]string, others []string) {
	c.t.Helper()
	streams = map[string]string{}
	for {
		f, err := c.r.Next()
		if err == io.EOF || errors.Is(err, net.ErrClosed) {
			return streams, others
		}
		if err != nil {
			c.t.Fatalf("read output: %v", err)
		}
		switch f.Type {
		case stdio.Stdout, stdio.Stderr:
			streams[fmt.Sprintf("%d.%d", f.Rank, f.Type-stdio.Stdout+1)] += string(f.Data)
		case stdio.StepEnd:
			others = append(others, "end")
			if err := stdio.Write(c, stdio.Frame{Type: stdio.Ack}); err != nil {
				c.t.Logf("acknowledge: %v", err)
			}
		case stdio.RankExit:
			var end job.RankEnd
			if err := json.Unmarshal(f.Data, &end); err != nil {
				c.t.Error(err)
			}
			others = append(others, fmt.Sprintf("exit %d with %d", f.Rank, end.Exit))
		case stdio.Gap:
			others = append(others, "gap")
		}
	}
}

// marked are the processes that have a variable with the directory, as the ranks of tests
// have it.
func marked(dir string) []string {
	entries, _ := os.ReadDir("/proc")
	var all []string
	for _, e := range entries {
		b, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		st, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err == nil && bytes.Contains(b, []byte("TESTDIR="+dir)) && !strings.Contains(string(st), ") Z ") {
			all = append(all, e.Name())
		}
	}
	return all
}

// forms are a step without and with a container.
func forms(t *testing.T, test func(t *testing.T, spec func(ranks int) *job.StepSpec, start func(t *testing.T, spec *job.StepSpec, environ ...string) *testStep)) {
	image := rankImage(t)
	for _, form := range []string{"bare", "contained"} {
		t.Run(form, func(t *testing.T) {
			test(t, func(ranks int) *job.StepSpec {
				s := stepSpec(ranks)
				if form == "contained" {
					s.Program.Container = []string{"--container-image=x"}
				}
				return s
			}, func(t *testing.T, spec *job.StepSpec, environ ...string) *testStep {
				return supervise(t, spec, append(slices.Clone(environ), "IMAGE="+image, "RUN="+t.TempDir())...)
			})
		})
	}
}
