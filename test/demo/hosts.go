package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hosts are hosts of their own on this machine: each has namespaces of network, names, mounts and
// processes, an address on a bridge, and a daemon. What they share is the file system. The first
// has the controller, the bridge and the registry.
type hosts struct {
	d        *demo
	all      []*lonelyHost
	register *daemon
}

// lonelyHost is one. Its first process is this program again (beHost), and with that all of it
// ends, as if its power were cut.
type lonelyHost struct {
	name, address, state string
	*daemon
	begin *os.File // closed when its network is there
}

const (
	controllerPort = "7430"
	registryPort   = "5000"
	hostVerb       = "be-host" // of this program
)

func (h *hosts) words() string {
	return fmt.Sprintf("%d hosts (namespaces of network, names, mounts and processes), 10.77.0.2 to .%d", nodes, nodes+1)
}

func (h *hosts) registry() string { return h.all[0].address + ":" + registryPort }

func (h *hosts) environ() []string {
	return []string{"GANGWAY_CLUSTER=unix:" + filepath.Join(h.all[0].state, "controller.sock"), "GANGWAY_RUNTIME_DIR=" + h.all[0].state, h.settings()}
}

// settings is where the user's settings are: the registry speaks plain HTTP.
func (h *hosts) settings() string { return "XDG_CONFIG_HOME=" + filepath.Join(h.d.dir, "config") }

// enter has a program run in the network of the first host.
func (h *hosts) enter(ctx context.Context, cmd *exec.Cmd) *exec.Cmd {
	there := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(h.all[0].cmd.Process.Pid), "--net", "--"}, cmd.Args...)...)
	there.Env, there.Dir = cmd.Env, cmd.Dir
	return there
}

// in runs a program in the network of a host.
func (h *hosts) in(ctx context.Context, one *lonelyHost, line string) error {
	args := append([]string{"-t", strconv.Itoa(one.cmd.Process.Pid), "--net", "--"}, strings.Fields(line)...)
	out, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s on host %s: %w: %s", line, one.name, err, bytes.TrimSpace(out))
	}
	return nil
}

func (h *hosts) start(ctx context.Context) error {
	ctl := &lonelyHost{name: "ctl", address: "10.77.0.1", state: filepath.Join(h.d.dir, "ctl")}
	h.all = []*lonelyHost{ctl}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		h.all = append(h.all, &lonelyHost{name: name, address: fmt.Sprintf("10.77.0.%d", i+2), state: filepath.Join(h.d.dir, name)})
	}
	settings := filepath.Join(h.d.dir, "config", "gangway")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf("[registry.%q]\nplain_http = true\n", h.registry())
	if err := os.WriteFile(filepath.Join(settings, "gangway.toml"), []byte(text), 0o600); err != nil {
		return err
	}
	if err := h.startController(ctx); err != nil {
		return err
	}
	var err error
	if h.register, err = h.d.startRegistry(ctx, h.registry(), h.enter); err != nil {
		return err
	}
	for _, one := range h.all[1:] {
		token, err := h.token(ctx, one.name)
		if err != nil {
			return err
		}
		if err := h.join(ctx, one, "--join", token, "--controller", ctl.address+":"+controllerPort); err != nil {
			return err
		}
	}
	return h.ready(ctx)
}

// startController makes the cluster, and the host where its controller and the bridge are.
func (h *hosts) startController(ctx context.Context) error {
	ctl := h.all[0]
	init := exec.CommandContext(ctx, filepath.Join(h.d.bin, "gangway"), "init", "--state-dir", ctl.state, "--name", "demo", "--nodes", fmt.Sprintf("n[1-%d]", nodes), "--lost-after", h.d.lostAfter.String())
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(init.Args, " "), err, out)
	}
	if err := h.launch(ctl, "controller", "--state-dir", ctl.state, "--listen", ctl.address+":"+controllerPort); err != nil {
		return err
	}
	// A bridge without an address of its own has the lowest of its ports', and the others go on sending
	// to the one before for half a minute.
	for _, line := range []string{"ip link set lo up", "ip link add br0 address 02:00:0a:4d:00:01 type bridge", "ip addr add " + ctl.address + "/24 dev br0", "ip link set br0 up"} {
		if err := h.in(ctx, ctl, line); err != nil {
			return err
		}
	}
	return ctl.begin.Close()
}

// join starts the host of a node, and its agent.
func (h *hosts) join(ctx context.Context, one *lonelyHost, more ...string) error {
	if err := h.launch(one, append([]string{"agent", "--state-dir", one.state}, more...)...); err != nil {
		return err
	}
	ctl := h.all[0]
	lines := []struct {
		on   *lonelyHost
		line string
	}{
		{ctl, fmt.Sprintf("ip link add v-%s type veth peer name eth0 netns %d", one.name, one.cmd.Process.Pid)},
		{ctl, "ip link set v-" + one.name + " master br0 up"},
		{one, "ip link set lo up"},
		{one, "ip addr add " + one.address + "/24 dev eth0"},
		{one, "ip link set eth0 up"},
	}
	for _, l := range lines {
		if err := h.in(ctx, l.on, l.line); err != nil {
			return err
		}
	}
	return one.begin.Close()
}

// launch starts the first process of a host, which waits for its network, and then starts
// gangwayd.
func (h *hosts) launch(one *lonelyHost, args ...string) error {
	if err := os.MkdirAll(one.state, 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	wait, begin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer wait.Close()
	cmd := exec.Command(self, append(append([]string{hostVerb, one.name, filepath.Join(h.d.bin, "gangwayd")}, args...), "--mode=user")...)
	cmd.Stdin = wait
	cmd.Env = h.d.environ("GANGWAY_RUNTIME_DIR="+one.state, h.settings())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	one.begin = begin
	one.daemon, err = h.d.starter.start("host "+one.name, cmd, filepath.Join(one.state, "daemon.log"), syscall.SIGKILL)
	return err
}

// token makes a join token.
func (h *hosts) token(ctx context.Context, node string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(h.d.bin, "gangway"), "token", "--state-dir", h.all[0].state, "--node", node).Output()
	if err != nil {
		return "", fmt.Errorf("make a join token for %s: %w", node, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// ready waits until all nodes have joined.
func (h *hosts) ready(ctx context.Context) error {
	h.d.env = h.d.environ(h.environ()...)
	for {
		for _, one := range h.all {
			select {
			case <-one.done:
				said, _ := os.ReadFile(filepath.Join(one.state, "daemon.log"))
				return fmt.Errorf("host %s ended: %w: %s", one.name, one.err, said)
			default:
			}
		}
		idle, err := h.d.asks(ctx, "sinfo", "-h", "-t", "idle", "-o", "%D")
		if err == nil && idle == strconv.Itoa(nodes) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (h *hosts) find(name string) *lonelyHost {
	for _, one := range h.all {
		if one.name == name {
			return one
		}
	}
	return nil
}

// lose cuts the host's cable and its power.
func (h *hosts) lose(ctx context.Context, node string) error {
	one := h.find(node)
	if one == nil {
		return fmt.Errorf("there is no host %s", node)
	}
	if err := h.in(ctx, h.all[0], "ip link del v-"+node); err != nil {
		return err
	}
	return errors.Join(one.cmd.Process.Kill(), waitEnd(ctx, one.daemon))
}

func waitEnd(ctx context.Context, b *daemon) error {
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// back starts the host again, with what is on its disk.
func (h *hosts) back(ctx context.Context, node string) error { return h.join(ctx, h.find(node)) }

func (h *hosts) stop() error {
	var err error
	ended := make(chan error, len(h.all))
	for i := len(h.all) - 1; i >= 0; i-- {
		go func() { ended <- h.all[i].end(syscall.SIGINT, 20*time.Second) }()
	}
	for range h.all {
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, h.register.end(syscall.SIGTERM, 5*time.Second))
}
