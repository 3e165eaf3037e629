package rdma

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// ibvDevices lists what rdma-core's library finds where /sys and /dev are the fake
// machine's, after the given shell commands.
func (tr *tree) ibvDevices(before string) string {
	tr.t.Helper()
	for _, program := range []string{"ibv_devices", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			tr.t.Skipf("needs %s", program)
		}
	}
	if _, err := os.Stat("/etc/libibverbs.d/mlx5.driver"); err != nil {
		tr.t.Skip("needs the library's driver of mlx5 (Debian: ibverbs-providers)")
	}
	if err := exec.CommandContext(tr.t.Context(), "unshare", "-m", "mount", "-n", "--bind", tr.root, tr.root).Run(); err != nil {
		tr.t.Skipf("needs the right to mount: %v", err)
	}
	script := fmt.Sprintf("set -e; mount -n --bind %[1]s/dev /dev; mount -n --rbind %[1]s/sys /sys; %[2]s\nibv_devices", tr.root, before)
	out, err := exec.CommandContext(tr.t.Context(), "unshare", "-m", "sh", "-c", script).CombinedOutput()
	if err != nil {
		tr.t.Fatalf("%v: %s", err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(fields[0], "mlx5_") {
			found = append(found, fields[0])
		}
	}
	slices.SortFunc(found, natural)
	return strings.Join(found, " ")
}

// TestVerbs: rdma-core's own library finds every adapter of the machine, and in a
// container's view those that were chosen: with our directories over those in /sys,
// with our device nodes only, and with both.
func TestVerbs(t *testing.T) {
	tr, gpus := dgx(t)
	for _, a := range tr.host().HCAs { // what the library asks besides
		verbs := strings.TrimPrefix(a.Nodes[0].Name, "infiniband/")
		dir := "sys/devices/" + a.Path
		tr.write(dir+"/modalias", "pci:v000015B3d00001021sv000015B3sd00000041bc02sc07i00\n")
		tr.write(dir+"/infiniband_verbs/"+verbs+"/abi_version", "1\n")
		tr.write(dir+"/infiniband/"+a.Name+"/node_type", "1: CA\n")
		tr.write(dir+"/infiniband/"+a.Name+"/node_guid", "b83f:d203:00aa:bb01\n")
	}
	h := tr.host()
	if got := tr.ibvDevices(""); got != names(h.HCAs) {
		t.Fatalf("the library finds %q, the machine has %q", got, names(h.HCAs))
	}
	c, err := h.Choose(Request{GPUs: []string{gpus[1], gpus[6]}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := h.Edits(c, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var hide, nodes strings.Builder
	for _, m := range e.Mounts {
		fmt.Fprintf(&hide, "mount -n --bind %s %s\n", m.HostPath, m.ContainerPath)
	}
	nodes.WriteString("cd /dev; for f in infiniband/*; do case $f in")
	for _, n := range e.DeviceNodes {
		fmt.Fprintf(&nodes, " %s) ;;", strings.TrimPrefix(n.Path, "/dev/"))
	}
	nodes.WriteString(" *) rm $f;; esac; done\n")
	const want = "mlx5_4 mlx5_9"
	if got := tr.ibvDevices(hide.String()); got != want {
		t.Errorf("with sysfs hidden it finds %q", got)
	}
	if got := tr.ibvDevices(hide.String() + nodes.String()); got != want { // removes nodes for good
		t.Errorf("with both it finds %q", got)
	}
	if got := tr.ibvDevices(""); got != want {
		t.Errorf("with the device nodes alone it finds %q", got)
	}
	// What NCCL does to find an adapter's place among the PCI devices.
	paths := hide.String() + "readlink -f /sys/class/infiniband/mlx5_4/device >&2; exit 0\n"
	script := fmt.Sprintf("mount -n --rbind %s/sys /sys; %s", tr.root, paths)
	out, err := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", script).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "/sys/devices/"+c.HCAs[0].Path {
		t.Errorf("%v %q", err, out)
	}
}
