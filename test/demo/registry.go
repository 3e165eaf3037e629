package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startRegistry starts Debian's docker-registry at an address, and waits until it listens. enter
// has it run where the nodes find it.
func (d *demo) startRegistry(ctx context.Context, address string, enter func(context.Context, *exec.Cmd) *exec.Cmd) (*daemon, error) {
	config := filepath.Join(d.dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q}\n",
		filepath.Join(d.dir, "registry"), address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log := filepath.Join(d.dir, "registry.log")
	b, err := d.starter.start("docker-registry", enter(context.WithoutCancel(ctx), exec.Command("docker-registry", "serve", config)), log, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	for !listens(b.cmd.Process.Pid, address) {
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-b.done:
			said, _ := os.ReadFile(log)
			return nil, fmt.Errorf("docker-registry ended: %w: %s", b.err, said)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return b, nil
}

// listens says whether somebody listens on a port where a process is, which may have a network of
// its own (proc(5), net/tcp: the local address in hexadecimal, then the other one, and the state).
func listens(pid int, address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
			return true
		}
	}
	return false
}

// freeAddress is one on which nobody listens now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// push puts an image of a layout into the registry, with the digests that it has.
func (d *demo) push(ctx context.Context, layout, name string) error {
	args := []string{
		"--insecure-policy", "copy", "-q", "--preserve-digests", "--dest-no-creds", "--dest-tls-verify=false",
		"oci:" + layout, "docker://" + d.place.registry() + "/" + name,
	}
	d.say.typed(append([]string{"skopeo"}, args...))
	return d.printed(d.place.enter(ctx, exec.CommandContext(ctx, "skopeo", args...)), nil)
}
