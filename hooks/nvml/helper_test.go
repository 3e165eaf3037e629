package nvml

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// helperMode makes this program a gangway-nvml of a certain illness.
const helperMode = "TEST_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperMode); mode != "" {
		helper(mode)
		return
	}
	code := m.Run()
	if theBuild.dir != "" {
		_ = os.RemoveAll(theBuild.dir)
	}
	os.Exit(code)
}

// helper answers as a helper with this illness does.
func helper(mode string) {
	if log := os.Getenv("TEST_STARTS"); log != "" { // a byte a start
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, _ = f.WriteString("x")
			_ = f.Close()
		}
	}
	in := bufio.NewScanner(os.Stdin)
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	for n := 1; in.Scan(); n++ {
		var r Request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			panic(err)
		}
		good := fmt.Sprintf(`{"id":%d,"result":{"gpus":[{"uuid":"GPU-1","gpu_percent":%d,"memory_used_bytes":7,"energy_mj":%d}],"new":1}}`, r.ID, 10*n, 1000*n)
		switch mode {
		case "good":
			say("%s", good)
		case "second":
			if n == 2 {
				hang()
			}
			say("%s", good)
		case "hung":
			hang()
		case "slow":
			time.Sleep(150 * time.Millisecond)
			say("%s", good)
		case "crash":
			fmt.Fprintln(os.Stderr, "\nSIGSEGV: segmentation violation\ngoroutine 1")
			os.Exit(2)
		case "killed":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
			time.Sleep(time.Second)
		case "symbol":
			fmt.Fprintln(os.Stderr, "gangway-nvml: symbol lookup error: undefined symbol: nvmlInit")
			os.Exit(127)
		case "garbage":
			say("%s", "NVML 3000 \x00\xff")
		case "other":
			say(`{"id":%d,"result":{}}`, r.ID+1)
		case "empty":
			say(`{"id":%d}`, r.ID)
		case "types":
			say(`{"id":%d,"result":{"gpus":"many"}}`, r.ID)
		case "many":
			say(`{"id":%d,"result":{"gpus":[{}%s]}}`, r.ID, strings.Repeat(",{}", maxGPUs))
		case "flood":
			line := strings.Repeat("x", 1<<16)
			for {
				if _, err := os.Stdout.WriteString(line); err != nil {
					return
				}
			}
		case "half":
			fmt.Print(`{"id":`)
			return
		case "closed":
			_ = os.Stdout.Close()
			hang()
		case "failure":
			say(`{"id":%d,"error":{"kind":%q,"text":"text","cause":"the cause","hint":"the hint"}}`, r.ID, os.Getenv("TEST_KIND"))
		}
	}
}

// hang ends by SIGKILL only.
func hang() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE)
	for {
		time.Sleep(time.Hour)
	}
}

// ill returns a client with a helper of this illness.
func ill(t *testing.T, mode string, opt Options, env ...string) *Client {
	t.Helper()
	opt.Program = "/proc/self/exe"
	opt.Env = append([]string{helperMode + "=" + mode}, env...)
	opt.Pause = orElse(opt.Pause, time.Nanosecond)
	c := New(opt)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// theBuild is the real helper and its fake library, built once.
var theBuild struct {
	once sync.Once
	dir  string
	err  error
}

// built returns the files of theBuild, or skips.
func built(t *testing.T) (program, library string) {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	b := &theBuild
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "nvml-test-"); b.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", b.dir+"/gangway-nvml", "../../cmd/gangway-nvml")
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		for _, cmd := range []*exec.Cmd{build, exec.Command(cc, "-shared", "-fPIC", "-o", b.dir+"/libnvidia-ml.so.1", "../../cmd/gangway-nvml/testdata/fake.c")} {
			if out, err := cmd.CombinedOutput(); err != nil {
				b.err = fmt.Errorf("%v: %w: %s", cmd, err, out)
				return
			}
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.dir + "/gangway-nvml", b.dir + "/libnvidia-ml.so.1"
}
