package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// fakeCUDA is libcuda, as far as the program of "make test-gpu" asks it, and nvidia-smi:
// both find the GPUs that /proc/driver/nvidia lists and whose device nodes can be opened.
const fakeCUDA = `#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char ids[8][64];
static int find(void)
{
	glob_t g;
	int n = 0;
	char line[256], node[64], id[64];
	const char *only = getenv("CUDA_VISIBLE_DEVICES");
	if (glob("/proc/driver/nvidia/gpus/*/information", 0, 0, &g))
		return 0;
	for (size_t i = 0; i < g.gl_pathc; i++) {
		FILE *f = fopen(g.gl_pathv[i], "r");
		int minor = -1, fd;
		while (f && fgets(line, sizeof line, f)) {
			sscanf(line, "GPU UUID: %63s", id);
			sscanf(line, "Device Minor: %d", &minor);
		}
		snprintf(node, sizeof node, "/dev/nvidia%d", minor);
		if ((fd = open(node, O_RDWR)) < 0 || (only && strcmp(only, id)))
			continue;
		close(fd);
		strcpy(ids[n++], id);
	}
	return n;
}
#ifdef SMI
int main(void)
{
	int n = find();
	for (int i = 0; i < n; i++)
		printf("GPU %d: fake (UUID: %s)\n", i, ids[i]);
	return n == 0;
}
#else
int cuInit(unsigned f) { return find() ? 0 : 100; }
int cuGetErrorString(int e, const char **s) { *s = "no CUDA-capable device is detected"; return 0; }
int cuDeviceGetCount(int *n) { *n = find(); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "fake"); return 0; }
int cuDeviceGetUuid(unsigned char *u, int d)
{
	const char *s = ids[d] + 4;
	for (int i = 0; i < 16; i++, s += 2) {
		unsigned x;
		if (*s == '-') s++;
		sscanf(s, "%2x", &x);
		u[i] = x;
	}
	return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuModuleLoadData(void **m, const char *text) { return strstr(text, "sm_50") ? 0 : 222; }
int cuModuleGetFunction(void **f, void *m, const char *name) { return strcmp(name, "vectoradd"); }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { *p = (unsigned long long)malloc(n); return 0; }
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned s, void *q, void **a, void **e)
{
	float *x = *(float **)a[0], *y = *(float **)a[1], *z = *(float **)a[2];
	for (unsigned i = 0, n = *(unsigned *)a[3]; i < n; i++)
		z[i] = x[i] + y[i];
	return 0;
}
#endif
`

// TestGPUProgram runs what "make test-gpu" runs, where it says what is lacking, and on a
// machine with GPUs that are none.
func TestGPUProgram(t *testing.T) {
	p := newPerson(t)
	program := filepath.Join(publicDir(t), "gpu")
	build := exec.Command("go", "build", "-o", program, "./gpu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc for a libcuda that is none")
	}
	if _, err := os.Stat("/dev/nvidiactl"); errors.Is(err, os.ErrNotExist) {
		outcomeOf(t, exec.Command(program, "-gangway", p.bin)).
			want(t, 3, "", `(?s)^test-gpu: this machine cannot run it; it lacks\n  - NVIDIA's kernel module: .*\n  - a GPU: .*/dev/nvidia-uvm`)
		outcomeOf(t, exec.Command(program, "-gangway", "/none")).want(t, 3, "", "the program to test: .*make build")
	}
	for _, c := range []struct {
		name   string
		gpus   int
		args   []string
		checks int
	}{
		{"two GPUs", 2, nil, 11},
		{"one GPU, root's", 1, []string{"-uid=0"}, 9},
	} {
		t.Run(c.name, func(t *testing.T) { runGPUProgram(t, p, gcc, program, c.gpus, c.checks, c.args...) })
	}
}

// runGPUProgram runs it on a machine.
func runGPUProgram(t *testing.T, p *person, gcc, program string, gpus, checks int, more ...string) {
	t.Helper()
	m := newGPUMachine(t, p, fakedriver.Options{GPUs: gpus})
	for to, options := range map[string][]string{
		filepath.Join(m.tree.Lib, "libcuda.so."+m.tree.Version): {"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"},
		filepath.Join(m.tree.Bin, "nvidia-smi"):                 {"-DSMI"},
	} {
		if err := os.Remove(to); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(gcc, append(options, "-w", "-x", "c", "-", "-o", to)...)
		cmd.Stdin = strings.NewReader(fakeCUDA)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	args := append([]string{"-gangway", p.bin, "-rounds=3", "-starts=3", "-elements=100000", "-additions=40", "-apart=100", "-ratio=100"}, more...)
	run := func(args ...string) outcome {
		cmd := m.enter(append([]string{program}, args...)...)
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+m.tree.Lib)
		return outcomeOf(t, cmd)
	}
	o := run(args...)
	o.want(t, 0, `(?s)^test-gpu: \d GPUs; containers are those of user \d+\nok .*ok    a GPU program is as fast.*\ntest-gpu: all is well\n$`, "")
	if strings.Contains(o.out, "FAIL") || strings.Count(o.out, "\nok ") != checks {
		t.Errorf("not %d checks:\n%s", checks, o.out)
	}
	t.Log(o.out)
	if gpus > 1 { // what is wrong is noticed
		run(append(args, "-apart=-1")...).want(t, 1, `FAIL  a GPU program is as fast inside as outside\n.*% apart, more than`, "test-gpu: 1 checks failed")
	}
}
