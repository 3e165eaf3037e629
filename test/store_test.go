package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestStorePrivate: an image that one user may read and has pulled into the node's store
// is not another's who has no credential, a wrong one, one that has expired, or one of
// an account without the right; though it is cached, and whatever he calls it.
func TestStorePrivate(t *testing.T) {
	h := newHub(t, true)
	s := newShared(t, []*hub{h})
	image := h.host + "/team/secret:1"
	run := func(p *person, more ...string) outcome {
		return s.do(p, append(append([]string{"run", "--container-image=" + image}, more...), "--", "cat", "/secret")...)
	}
	s.login(s.ann, h, "ann", annPass)
	run(s.ann).want(t, 0, `^of ann\n$`, `layer 3 of 3.*done(?s).*gangway: running here: .*, of the node's image store\n$`)
	h.count("")
	run(s.ann, "-q").want(t, 0, `^of ann\n$`, ``)
	if n := h.count(""); n != 0 {
		t.Errorf("within the lease the registry was asked %d times", n)
	}

	denied := `error: .*401 Unauthorized`
	run(s.bob).want(t, 125, ``, denied+`(?s).*cause: no credential for `+h.host+` was found; looked in .*hint: .*docker login`)
	s.login(s.bob, h, "ann", "wrong")
	run(s.bob).want(t, 125, ``, denied+`(?s).*cause: `+h.host+` refused the credential of ann from .*config.json.*: it is wrong, has expired`)
	s.login(s.bob, h, "bob", bobPass)
	run(s.bob).want(t, 125, ``, `error: .*403 Forbidden.*bob may not read this`)
	run(s.bob, "--pull=never").want(t, 125, ``, `403 Forbidden`)
	run(s.bob, "--pull=always").want(t, 125, ``, `403 Forbidden`)
	digest := manifestOf(t, s.do(s.ann, "image", "pull", "-q", image).out)
	image = h.host + "/team/secret@" + digest
	run(s.bob).want(t, 125, ``, `403 Forbidden`)
	s.do(s.bob, "image", "pull", "-q", image).want(t, 125, ``, `403 Forbidden`)
	h.set(func() { h.revoke = true })
	run(s.bob).want(t, 125, ``, `error: .*the password has expired(?s).*it is wrong, has expired`)
	h.set(func() { h.revoke = false })
	run(s.ann, "-q").want(t, 0, `^of ann\n$`, ``)
	if names, _ := filepath.Glob(filepath.Join(s.ann.dir, "home/.cache/gangway/*")); len(names) != 1 || filepath.Base(names[0]) != "hot" {
		t.Errorf("ann's own store has %q", names)
	}
}

// TestStoreShared: what anybody may read is fetched once for all, by fifty commands of two
// users at a time; a service that is killed in the middle of it leaves a whole store, says
// so to those who wait, and the next one goes on.
func TestStoreShared(t *testing.T) {
	h := newHub(t, false)
	s := newShared(t, []*hub{h})
	image := h.host + "/team/secret:2"
	slow := make(chan struct{})
	h.set(func() { h.slow = slow })
	var waiting []*background
	for _, p := range []*person{s.ann, s.bob} {
		waiting = append(waiting, inBackground(t, s.command(p, "image", "pull", image)))
	}
	<-h.begun
	waitFor(t, func() bool { // until the other one waits for the same layer
		return strings.Contains(waiting[0].out.String()+waiting[1].out.String(), "another process fetches it")
	})
	s.kill()
	for _, b := range waiting {
		b.ends(t, 125)
		if out := b.out.String(); !regexp.MustCompile(`error: .*talk to the node's image store(?s).*cause: it ended while it was asked\n.*hint: `).MatchString(out) {
			t.Errorf("a client of a service that is killed: %s", out)
		}
	}
	s.do(s.bob, "run", "--container-image="+image, "--", "true").
		want(t, 125, ``, `error: connect to the node's image store(?s).*cause: nobody listens on .*hint: .*systemctl start gangway-store; .*--store DIR`)
	close(slow)
	h.set(func() { h.slow = nil })
	if left := s.has("layers/v1/sha256/*.sqsh"); len(left) > 2 {
		t.Errorf("of a pull that was killed there is %q", left)
	}
	s.start()
	h.count("")
	waiting = nil
	for n := range 50 {
		p := s.ann
		if n%2 == 1 {
			p = s.bob
		}
		waiting = append(waiting, inBackground(t, s.command(p, "run", "-q", "--container-image="+image, "--", "cat", "/secret")))
	}
	for _, b := range waiting {
		b.ends(t, 0)
		if out := b.out.String(); out != "of ann too\n" {
			t.Errorf("it printed %s", out)
		}
	}
	if n := h.count("GET .*/blobs/"); n > 4 { // a configuration and three layers
		t.Errorf("blobs were fetched %d times", n)
	}
}

// TestStoreNamed: a named container of an image of the node's store goes on from it when
// the registry is away, and after gc; for its user alone, and until it is removed.
func TestStoreNamed(t *testing.T) {
	h := newHub(t, true)
	s := newShared(t, []*hub{h}, "--lease", "0s")
	s.login(s.ann, h, "ann", annPass)
	image := h.host + "/team/secret:1"
	s.do(s.ann, "run", "-q", "--container-image="+image, "--container-name=box", "--container-writable", "--", "sh", "-c", "echo mine > /written").want(t, 0, ``, ``)
	h.set(func() { h.down = true })
	s.do(s.ann, "run", "-q", "--container-image="+image, "--", "true").want(t, 125, ``, `error: ask for access to .*EOF(?s).*cause: the image is on this node, but .*hint`)
	s.gc("--older-than", "1m")
	again := []string{"run", "-q", "--container-name=box", "--", "cat", "/written", "/secret"}
	s.do(s.ann, again...).want(t, 0, `^mine\nof ann\n$`, ``)
	s.do(s.ann, "container", "export", "box", "-o", "box.sqsh").want(t, 0, ``, ``)
	// Another user's container of the same name, and a claim to have been made of it.
	from, to := filepath.Join(s.ann.dir, "home/.local"), filepath.Join(s.bob.dir, "home/.local")
	run(t, nil, "cp", "-a", from, to)
	run(t, nil, "chown", "-R", fmt.Sprint(s.bob.uid()), to)
	s.do(s.bob, again...).want(t, 125, ``, `error: `)
	s.do(s.ann, "container", "rm", "box").want(t, 0, ``, ``)
	s.gc("--keep-bytes", "0")
	if left := s.has("layers/v1/sha256/*.sqsh"); len(left) > 0 {
		t.Errorf("after the container is gone there is %q", left)
	}
}

// TestStoreHanded: what is handed over cannot be written, and is kept from gc for as long
// as the container runs, which goes on when the service is killed. Who sends garbage, or
// nothing, is turned away and disturbs nobody.
func TestStoreHanded(t *testing.T) {
	h := newHub(t, false)
	s := newShared(t, []*hub{h})
	image := h.host + "/team/secret:1"
	long := inBackground(t, s.command(s.ann, "run", "-q", "--container-image="+image, "--container-mounts="+s.ann.mkdir(t, "home/m")+":/m", "--", "sh", "-c", ": > /m/up; while [ ! -e /m/end ]; do sleep 0.05; done; cat /secret; wc -c < /big"))
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(s.ann.dir, "home/m/up")); return err == nil })

	s.gc("--keep-bytes", "0")
	if left := s.has("layers/v1/sha256/*.sqsh"); len(left) != 3 {
		t.Errorf("gc left %q of an image that is in use", left)
	}
	files := 0
	for _, n := range openNumbers(t, long.cmd.Process.Pid) {
		link := fmt.Sprintf("/proc/%d/fd/%d", long.cmd.Process.Pid, n)
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, filepath.Join(s.dir, "store")) {
			continue
		}
		files++
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", long.cmd.Process.Pid, n))
		if err != nil || !regexp.MustCompile(`flags:\s+0?[0-7]*0\n`).Match(info) {
			t.Errorf("%v: a file that was handed over is open for writing: %s", err, info)
		}
		// As the user, who owns the process.
		try := exec.Command("sh", "-c", "exec 3<>"+link+" && echo x >&3")
		try.SysProcAttr = &syscall.SysProcAttr{Credential: s.ann.cred}
		if out, err := try.CombinedOutput(); err == nil || !strings.Contains(string(out), "ermission denied") {
			t.Errorf("a file that was handed over is opened for writing again: %v: %s", err, out)
		}
	}
	if files != 4 {
		t.Errorf("%d files of the store are open, want an index and three layers", files)
	}
	s.garbage()
	s.do(s.bob, "run", "-q", "--container-image="+image, "--", "cat", "/secret").want(t, 0, `^of ann\n$`, ``)
	s.kill()
	if err := os.WriteFile(filepath.Join(s.ann.dir, "home/m/end"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	long.ends(t, 0)
	if out := long.out.String(); out != "of ann\n2097152\n" {
		t.Errorf("the container whose service was killed printed %q", out)
	}
	s.start()
	s.gc("--keep-bytes", "0")
	if left := s.has("layers/v1/sha256/*.sqsh"); len(left) != 0 {
		t.Errorf("gc left %q, which nobody uses", left)
	}
}

// TestStoreForged: who knows the digests of a private image has no use of them. Not with a
// registry of his own whose image names the layers, or is it; nor if that listens where
// the real one did.
func TestStoreForged(t *testing.T) {
	h := newHub(t, true)
	s := newShared(t, []*hub{h})
	s.login(s.ann, h, "ann", annPass)
	image := h.host + "/team/secret:1"
	digest := manifestOf(t, s.do(s.ann, "image", "pull", "-q", image).out)

	// The forger says yes to everything, and has what somebody may know: manifest and
	// configuration. Of layers he has the digests and sizes.
	forger := newForger(t, h, "team/secret", digest)
	for _, name := range []string{forger.host + "/team/secret:1", forger.host + "/team/secret@" + digest} {
		for _, pull := range []string{"missing", "always", "never"} {
			o := s.do(s.bob, "run", "-q", "--pull="+pull, "--container-image="+name, "--", "cat", "/secret")
			if o.code != 125 || o.out != "" || strings.Contains(o.out+o.err, "of ann") {
				t.Errorf("%s, --pull=%s: exit %d: %s%s", name, pull, o.code, o.out, o.err)
			}
			if pull != "never" && !strings.Contains(o.err, "layer") {
				t.Errorf("it was not refused for want of a layer: %s", o.err)
			}
		}
	}
	s.do(s.ann, "run", "-q", "--container-image="+image, "--", "cat", "/secret").want(t, 0, `^of ann\n$`, ``)
	// One user's word about a registry that nobody vouches for is not another's.
	plain := h.plain + "/team/secret:1"
	s.login(s.ann, &hub{host: h.plain}, "ann", annPass)
	s.do(s.ann, "run", "-q", "--container-image="+plain, "--", "cat", "/secret").want(t, 0, `^of ann\n$`, ``)
	forger.listen(t, h)
	s.do(s.bob, "run", "-q", "--container-image="+plain, "--", "cat", "/secret").want(t, 125, ``, `error: .*layer`)
}

// TestStoreFull: a full disk is an error that names the remedy, of users and of the
// administrator, and what was there stays good.
func TestStoreFull(t *testing.T) {
	h := newHub(t, false)
	s := newShared(t, []*hub{h})
	s.kill()
	dir := s.mkdir("store", storeUID)
	run(t, nil, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=6m,mode=700,uid=%d", storeUID), "none", dir)
	t.Cleanup(func() { run(t, nil, "umount", "-l", dir) })
	s.start()
	s.do(s.ann, "run", "-q", "--container-image="+h.host+"/team/secret:1", "--", "cat", "/secret").want(t, 0, `^of ann\n$`, ``)
	h.push(t, "team/large:1", busybox(t), map[string]string{"tmp/": "", "large": random(8 << 20)})
	s.do(s.bob, "image", "pull", "-q", h.host+"/team/large:1").
		want(t, 125, ``, `error: (?s).*cause: no space is left for the node's image store\n.*hint: .*ask the administrator.*gangway image gc.*--store DIR`)
	s.do(s.bob, "run", "-q", "--container-image="+h.host+"/team/secret:1", "--", "cat", "/secret").want(t, 0, `^of ann\n$`, ``)
}

// TestStoreAdmin: root looks after the store through the socket; users see what they may.
func TestStoreAdmin(t *testing.T) {
	h := newHub(t, true)
	s := newShared(t, []*hub{h})
	s.login(s.ann, h, "ann", annPass)
	image := h.host + "/team/secret:1"
	s.do(s.ann, "image", "pull", "-q", image).want(t, 0, `team/secret:1 sha256:`, ``)
	s.do(s.ann, "image", "ls").want(t, 0, `STORE\n`+image+` .* node\n$`, ``)
	s.do(s.bob, "image", "ls").want(t, 0, `STORE\n$`, ``)
	root := &person{dir: publicDir(t), bin: s.ann.bin}
	root.mkdir(t, "home")
	s.do(root, "image", "ls", "--json").want(t, 0, `"node_store": true`, ``)
	s.do(root, "image", "pin", "secret:1").want(t, 0, ``, ``)
	s.do(root, "image", "rm", "secret:1").want(t, 125, ``, `error: remove image .*: it is pinned`)
	s.do(root, "image", "gc", "--keep-bytes", "0").want(t, 0, `^freed 0 B in 0 files`, ``)
	s.do(root, "image", "verify").want(t, 0, `^1 image good`, ``)
	s.do(root, "image", "unpin", "secret:1").want(t, 0, ``, ``)
	s.do(root, "run", "-q", "--container-image="+image, "--", "cat", "/secret").want(t, 125, ``, `401 Unauthorized`)
	s.login(root, h, "ann", annPass)
	s.do(root, "run", "-q", "--container-image="+image, "--", "cat", "/secret").want(t, 0, `^of ann\n$`, ``)
	s.do(root, "image", "rm", "nothing:1").want(t, 125, ``, `no such image`)
	s.do(root, "image", "rm", "secret:1").want(t, 0, `^removed .*secret:1\n`, ``)
	if left := s.has("layers/v1/sha256/*.sqsh"); len(left) != 0 {
		t.Errorf("rm left %q", left)
	}
	if own, _ := filepath.Glob(filepath.Join(root.dir, "home/.cache/gangway/*")); len(own) > 1 {
		t.Errorf("root's own store has %q", own)
	}
}
