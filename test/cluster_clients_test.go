package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// client is a program that people use on top of Slurm: it writes scripts into a directory,
// calls Slurm's commands by a shell, and reads what they print in its own way. The scripts are
// in testdata/clients; what is done with the output is beside the calls.
type client struct {
	*cluster
	t   *testing.T
	dir string
}

// testClusterClients runs the calls of such programs beside each other, each until it has seen
// what it waits for: ends, failures, cancellations, and what it does before a time limit.
func testClusterClients(t *testing.T, bin string) {
	c := newCluster(t, bin, "--gres", "gpu:h100:8", "--cpus-per-node", "64", "--mem", "64G")
	for name, run := range map[string]func(*client){
		"submitit": submitit, "nextflow": nextflow, "snakemake": snakemake, "dask": dask, "parsl": parsl, "psij": psij,
		"toil": toil, "batchspawner": batchspawner, "lightning": lightning, "deepspeed": deepspeed, "torchx": torchx,
		"nemo": nemo, "requeue": requeueItself, "ray": ray, "accelerate": accelerate, "monitors": monitors,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(&client{cluster: c, t: t, dir: c.mkdir(t, filepath.Join("home", name))})
		})
	}
}

// shell runs a line by a shell in the client's directory, with additions to its environment.
func (c *client) shell(line string, environ ...string) outcome {
	c.t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir = c.dir
	cmd.Env = append(c.environ(), "PATH="+filepath.Dir(c.bin)+":/usr/local/bin:/usr/bin:/bin", "USER="+c.user())
	cmd.Env = append(cmd.Env, environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred}
	return outcomeOf(c.t, cmd)
}

// user is the user's name.
func (c *client) user() string { return strconv.Itoa(c.uid()) }

// ok runs a line that has to work, and returns its output.
func (c *client) ok(line string, environ ...string) string {
	c.t.Helper()
	o := c.shell(line, environ...)
	if o.code != 0 {
		c.t.Fatalf("%s: exit %d\n%s%s", line, o.code, o.out, o.err)
	}
	return o.out
}

// script writes one of testdata/clients as a file of the client's, with values for what is
// between two @; DIR is the client's directory.
func (c *client) script(from, file string, values ...string) {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "clients", from))
	if err != nil {
		c.t.Fatal(err)
	}
	pairs := []string{"@DIR@", c.dir}
	for i := 0; i < len(values); i += 2 {
		pairs = append(pairs, "@"+values[i]+"@", values[i+1])
	}
	text := strings.NewReplacer(pairs...).Replace(string(b))
	if left := regexp.MustCompile(`@[A-Z]+@`).FindString(text); left != "" {
		c.t.Fatalf("%s: nothing is said of %s", from, left)
	}
	c.write(file, text)
}

// write writes a file of the client's.
func (c *client) write(file, text string) {
	c.t.Helper()
	c.ok("mkdir -p " + filepath.Dir(file))
	if err := os.WriteFile(filepath.Join(c.dir, file), []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// read is a file of the client's; what is not there is empty.
func (c *client) read(file string) string {
	b, _ := os.ReadFile(filepath.Join(c.dir, file))
	return string(b)
}

// find is the first group of a pattern in a text, which has to be there.
func (c *client) find(pattern, text string) string {
	c.t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		c.t.Fatalf("there is no %s in %q", pattern, text)
	}
	return m[1]
}

// until asks again and again, as clients do.
func (c *client) until(what string, f func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(2 * clusterPatience); !f(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("waited in vain for %s; the queue is\n%s", what, c.shell("squeue -t all").out)
		}
	}
}

// appears waits for something in a file.
func (c *client) appears(file, pattern string) string {
	c.t.Helper()
	match := regexp.MustCompile(pattern)
	c.until(pattern+" in "+file, func() bool { return match.MatchString(c.read(file)) })
	return c.read(file)
}

// same fails unless something is as it should be.
func (c *client) same(what, got, want string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s is\n%s\nwant\n%s", what, got, want)
	}
}

// like fails unless something matches a pattern as a whole.
func (c *client) like(what, got, pattern string) {
	c.t.Helper()
	if !regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(got) {
		c.t.Errorf("%s is\n%s\nwant\n%s", what, got, pattern)
	}
}
