package proc

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestAsNobody: a command of root's has another user, no group, no right, no terminal's
// session, no environment, and no file that was left open.
func TestAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives its rights away")
	}
	if !IsRoot() {
		t.Skip("needs root outside of user namespaces")
	}
	open, err := os.Open("/etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `cat /proc/self/status; echo "cwd $PWD"; ls -l /proc/self/fd; cat /proc/self/environ; test $(cut -d" " -f6 /proc/$$/stat) = $$ && echo leader`)
	AsNobody(cmd)
	b, err := cmd.CombinedOutput()
	out := string(b)
	for _, want := range []string{
		"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n",
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "cwd /\n", "leader\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing: %v: %s", want, err, out)
		}
	}
	for _, bad := range []string{"shadow", "HOME="} {
		if strings.Contains(out, bad) {
			t.Errorf("%q is there: %s", bad, out)
		}
	}
	if err := Renounce(); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("root itself renounces: %v", err)
	}
}

// TestExcerpt: the begin is kept, the rest is taken and dropped.
func TestExcerpt(t *testing.T) {
	var e Excerpt
	for range 3 {
		if n, err := e.Write([]byte(strings.Repeat("x", 40000))); n != 40000 || err != nil {
			t.Errorf("took %d, %v", n, err)
		}
	}
	if len(e.Bytes()) != excerpt {
		t.Errorf("kept %d bytes", len(e.Bytes()))
	}
}
