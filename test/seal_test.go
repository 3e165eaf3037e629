package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSealed is CVE-2019-5736 for containers that see the host's processes, and can kill
// the supervisor: the program that they get hold of is a copy that nobody can change.
func TestSealed(t *testing.T) {
	p := newPerson(t)
	own := filepath.Join(p.dir, "home", "gangway")
	run(t, nil, "cp", p.bin, own)
	if err := os.Chown(own, p.uid(), -1); err != nil {
		t.Fatal(err)
	}
	p.bin = own
	image := p.image(t, nil, craft(t, entry{name: "evil", content: "#!/proc/self/exe version\n"}))
	find := fmt.Sprintf("case $(readlink /proc/self/exe) in */busybox) ;; *) exit 9;; esac; echo ran; test -e /proc/%d/stat && echo host", os.Getpid())
	for _, options := range [][]string{nil, {"--container-writable"}, {"--container-remap-root"}, {"--container-name=s1:create"}} {
		p.run(t, image, append(append([]string{"--pid=host"}, options...), "--", "sh", "-c", find)...).want(t, 0, "^ran\nhost\n$", "")
	}
	running := p.start(t, image, "--container-name=sealed", "--pid=host")
	defer running.stop(t)
	exe := fmt.Sprintf("/proc/%d/exe", running.cmd.Process.Pid)
	f, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_WRITE == 0 {
		t.Errorf("%s has seals %#x, %v", exe, seals, err)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", running.cmd.Process.Pid)); err != nil || string(b) != "gangway\n" {
		t.Errorf("its name is %q, %v", b, err)
	}
	// What was executed in the container by the name of the runtime's program is the copy.
	outcomeOf(t, p.command("exec", "sealed", "/evil")).want(t, 2, "", "unexpected operand \"/evil\"")
}

// TestSealedLate: where a container comes to see the host's processes because none of its
// own can be mounted, the program is sealed as well; where it cannot be, that is said.
func TestSealedLate(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	p.run(t, image, "--", "true").want(t, 0, "", "")
	masked := mounted{Source: "tmpfs", Target: "/proc/irq", Kind: "tmpfs", Flags: unix.MS_RDONLY}
	for _, options := range [][]string{nil, {"--container-writable"}, {"--container-name=late:create", "--container-writable"}} {
		args := append(append([]string{"run", "-q", "--container-image=" + image}, options...), "--", "echo", "ran")
		in := surroundings{Flags: pidNS, Mounts: []mounted{{Source: "proc", Target: "/proc", Kind: "proc"}, masked}}
		// Nothing else is said: neither that it could not be sealed, nor that what can be
		// written to is not known.
		outcomeOf(t, in.within(t, p.command(args...))).want(t, 0, "^ran\n$", `^gangway: warning: processes of the host are visible[^\n]*\n$`)
	}
	if b, err := os.ReadFile(filepath.Join(p.dir, "run", "gangway", "writable.json")); err != nil || !strings.Contains(string(b), `"rung":"fuse`) {
		t.Errorf("what can be written to is not noted: %q, %v", b, err)
	}
	// It is asked for before an image is written to disk, which the first attempt would do in
	// vain: here it cannot be written.
	noFUSE := mounted{Source: "/dev/null", Target: "/dev/fuse", Flags: unix.MS_BIND}
	scratch := filepath.Join(p.dir, "home", "store", "scratch")
	if err := errors.Join(os.RemoveAll(scratch), os.WriteFile(scratch, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	tree := surroundings{Flags: pidNS, Mounts: []mounted{{Source: "proc", Target: "/proc", Kind: "proc"}, masked, noFUSE}}
	outcomeOf(t, tree.within(t, p.command("run", "-q", "--container-image="+image, "--", "true"))).want(t, 125, "", "(?s)processes of the host are visible.*make scratch directory")
	if err := os.Remove(scratch); err != nil {
		t.Fatal(err)
	}
	in := surroundings{Flags: pidNS, Mounts: []mounted{{Source: "proc", Target: "/proc", Kind: "proc"}, masked}, Filter: []rule{{Call: unix.SYS_MEMFD_CREATE, Errno: syscall.EPERM}}}
	outcomeOf(t, in.within(t, p.command("run", "--container-image="+image, "--", "echo", "ran"))).want(t, 0, "^ran\n$", "could change the program")
}
