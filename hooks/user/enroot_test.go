package user

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// write writes a file and the directories above it.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestEnroot: a site's hooks, variables and mounts, written as sites write them.
func TestEnroot(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash: Enroot's hooks are written for it")
	}
	system, personal, data := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, system+"/environ.d/10-terminal.env", "TERM=${TERM}\n")
	write(t, system+"/environ.d/20-site.env", "# proxies\n  http_proxy=\"http://proxy:3128\"\nENROOT_X=1\n9x=1\nnonsense\nWHERE=${HOME}/$x${unset}:${NOT CLOSED\n")
	write(t, personal+"/environ.d/10-mine.env", "PATH=/opt/mine/bin:${PATH}\n")
	write(t, system+"/mounts.d/20-config.fstab", "/etc/hosts /etc/hosts none bind\n") // Enroot's own
	write(t, system+"/mounts.d/30-data.fstab", "# source target type options\n"+
		"${DATA} /data none x-create=dir,rbind,ro,nosuid,rslave\n"+
		"${DATA}/not /there /none none bind,nofail\n"+ // six fields, one of them wrong
		"")
	run := func(edit func(*Enroot)) (*Result, error) {
		e := Enroot{
			System: system, Personal: personal, Library: "/opt/enroot", Dir: t.TempDir(),
			Environ: []string{"TERM=xterm", "HOME=/home/alice", "DATA=" + data, "SLURM_JOB_ID=4711", "SLURM_NTASKS=2", "PATH=" + os.Getenv("PATH"), "ENROOT_MOUNTS=/evil", "NEWLINE=a\nLD_PRELOAD=/x"},
			Image:   []string{"PYTORCH_VERSION=2.9", "PATH=/usr/bin", `QUOTED="as it is"`, "MULTI=a\nb"},
		}
		if edit != nil {
			edit(&e)
		}
		return e.Edits(t.Context())
	}
	_, err = run(nil)
	want(t, err, "30-data.fstab:3", `"bind,nofail" is no number`)
	write(t, system+"/mounts.d/30-data.fstab", "${DATA} /data none x-create=dir,rbind,ro,nosuid,rslave\n${DATA}/not /there none bind,nofail\ntmpfs /scratch\ntmpfs /big tmpfs size=1G,mode=1777,x-create=dir,nosuid\nnone /old none x-detach\nnone /dev/pts devpts newinstance\nrelative /r none bind\n")

	script(t, system+"/hooks.d/98-nvidia.sh", "exit 1") // Enroot's own
	write(t, system+"/hooks.d/40-plain.sh", "exit 1")   // not executable
	if err := os.MkdirAll(personal+"/hooks.d", 0o755); err != nil {
		t.Fatal(err)
	}
	hook := "#!" + bash + `
set -eu
if ! grep -q "^PYTORCH_VERSION=" "${ENROOT_ENVIRON}"; then exit 0; fi
printf "MASTER_PORT=%s\n" "$((SLURM_JOB_ID % 4536 + 61000))" >> "${ENROOT_ENVIRON}"
for v in $(compgen -e SLURM_); do printf "%s=%s\n" "$v" "${!v}" >> "${ENROOT_ENVIRON}"; done
cat >> "${ENROOT_MOUNTS}" <<- EOF
	/tmp /spool/a\040b none x-create=dir,bind,rw,nosuid,noexec,nodev,private,nofail
	/proc /early none bind 0 -1
	EOF
test "${ENROOT_LIBRARY_PATH}" = /opt/enroot
test -d "${ENROOT_ROOTFS}"
test "${LD_PRELOAD-none}" = none
echo "a warning" >&2
`
	if err := os.WriteFile(personal+"/hooks.d/50-slurm.sh", []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := run(nil)
	if err != nil {
		t.Fatal(err, got.Notes)
	}
	wantEnv := []string{
		"PATH=/opt/mine/bin:" + os.Getenv("PATH"), "TERM=xterm", "http_proxy=http://proxy:3128", "WHERE=/home/alice/$x:${NOT CLOSED",
		"MASTER_PORT=61175", "SLURM_JOB_ID=4711", "SLURM_NTASKS=2",
	}
	if !slices.Equal(got.Edits.Env, wantEnv) {
		t.Errorf("%q\nwant %q", got.Edits.Env, wantEnv)
	}
	var mounts []string
	for _, m := range got.Edits.Mounts {
		mounts = append(mounts, m.HostPath+" "+m.ContainerPath+" "+m.Type+" "+strings.Join(m.Options, ","))
	}
	wantMounts := []string{
		"/proc /early  bind", data + " /data  rbind,ro,nosuid,rslave", "tmpfs /scratch tmpfs ", "tmpfs /big tmpfs size=1G,mode=1777,nosuid",
		"/tmp /spool/a b  bind,rw,nosuid,noexec,nodev,private",
	}
	if !slices.Equal(mounts, wantMounts) {
		t.Errorf("%q\nwant %q", mounts, wantMounts)
	}
	notes := strings.Join(got.Notes, "\n")
	for _, s := range []string{"20-config.fstab is left out", "98-nvidia.sh is left out", "50-slurm.sh: a warning", "30-data.fstab:5: is left out: it changes", "mounts devpts itself", `"relative" is no absolute path`} {
		if !strings.Contains(notes, s) {
			t.Errorf("%q is missing in:\n%s", s, notes)
		}
	}
	if len(got.Ran) != 1 {
		t.Errorf("%+v", got.Ran)
	}
	if got, err = run(func(e *Enroot) { e.Image = nil }); err != nil || strings.Contains(strings.Join(got.Edits.Env, " "), "MASTER_PORT") {
		t.Errorf("%q %v", got.Edits.Env, err)
	}

	script(t, personal+"/hooks.d/60-bad.sh", "echo no licence >&2; exit 2")
	_, err = run(nil)
	want(t, err, "60-bad.sh: exit status 2", "no licence")
	script(t, personal+"/hooks.d/60-bad.sh", `echo "/nonexistent /x none bind" >> $ENROOT_MOUNTS; mkdir $ENROOT_ROOTFS/etc`)
	_, err = run(nil)
	want(t, err, "mount /nonexistent: file does not exist", "ENROOT_MOUNTS:3 asks for it", "nofail")
	script(t, personal+"/hooks.d/60-bad.sh", `mkdir $ENROOT_ROOTFS/etc`)
	if got, err = run(nil); err != nil || !strings.Contains(got.Notes[len(got.Notes)-1], "wrote etc into ENROOT_ROOTFS") {
		t.Errorf("%q %v", got.Notes, err)
	}
	script(t, personal+"/hooks.d/60-bad.sh", `rm $ENROOT_ENVIRON; mkfifo $ENROOT_ENVIRON`)
	_, err = run(nil)
	want(t, err, "no regular file")
	script(t, personal+"/hooks.d/60-bad.sh", `head -c 2000000 /dev/zero >> $ENROOT_MOUNTS`)
	_, err = run(nil)
	want(t, err, "more than 1048576 bytes")
}

// TestEnrootNone: a machine that never had Enroot.
func TestEnrootNone(t *testing.T) {
	got, err := Enroot{System: "/nonexistent", Dir: t.TempDir(), Image: []string{"A=1"}}.Edits(t.Context())
	if err != nil || !isZero(&got.Edits) || len(got.Notes) != 0 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestEnrootAsRoot: root that runs a user's hooks reads and writes no file for the user
// that the user could not.
func TestEnrootAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	const id = 4242
	system, personal := public(t), public(t)
	secret := t.TempDir() + "/secret"
	write(t, secret, "PASSWORD=x\n")
	script(t, system+"/hooks.d/10-id.sh", `echo "ID=$(id -u)" >> $ENROOT_ENVIRON`)
	run := func(dir string) (*Result, error) {
		if err := errors.Join(os.Chown(personal, id, id), os.Chown(dir, id, id)); err != nil {
			t.Fatal(err)
		}
		return Enroot{Runner: Runner{Credential: &syscall.Credential{Uid: id, Gid: id}}, System: system, Personal: personal, Dir: dir, Environ: []string{"PATH=" + os.Getenv("PATH")}}.Edits(t.Context())
	}
	got, err := run(public(t))
	if err != nil || !slices.Equal(got.Edits.Env, []string{"ID=4242"}) {
		t.Errorf("%+v %v", got, err)
	}
	// The user puts a link where root will write.
	dir := public(t)
	if err := os.Symlink(secret, dir+"/environment"); err != nil {
		t.Fatal(err)
	}
	_, err = run(dir)
	want(t, err, "file exists")
	// The user puts a link where root will read.
	script(t, system+"/hooks.d/10-id.sh", `rm $ENROOT_ENVIRON; ln -s `+secret+` $ENROOT_ENVIRON`)
	_, err = run(public(t))
	want(t, err, "it is not the user's")
	script(t, system+"/hooks.d/10-id.sh", "")
	if err := errors.Join(os.Mkdir(personal+"/environ.d", 0o755), os.Symlink(secret, personal+"/environ.d/x.env")); err != nil {
		t.Fatal(err)
	}
	_, err = run(public(t))
	want(t, err, "x.env: it is not the user's")
	if b, err := os.ReadFile(secret); err != nil || string(b) != "PASSWORD=x\n" {
		t.Errorf("%q %v", b, err)
	}
}

// TestSubstitute: compared with a regular expression.
func TestSubstitute(t *testing.T) {
	vars := map[string]string{"a": "1", "B_2": "${a}", "c": "x\ny"}
	pattern := regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([ab$]|\$\{|\}|a|B_2|c|2|\$\{a\}|\$\{c\}){0,12}`).Draw(t, "s")
		naive := pattern.ReplaceAllStringFunc(s, func(v string) string { return strings.ReplaceAll(vars[v[2:len(v)-1]], "\n", " ") })
		if got := substitute(s, vars); got != naive {
			t.Fatalf("%q becomes %q, want %q", s, got, naive)
		}
	})
}

// TestFstabRoundTrip: what is written with escapes is read as it was.
func TestFstabRoundTrip(t *testing.T) {
	escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`(/[a-z \t\n\\#0-9.]{1,8}){1,4}`)
		source, target := name.Draw(t, "source"), filepath.Clean(name.Draw(t, "target"))
		pass := rapid.IntRange(-1, 1).Draw(t, "pass")
		line := escape.Replace(source) + "\t" + escape.Replace(target) + " none bind,ro 0 " + []string{"-1", "0", "1"}[pass+1] + "\n"
		got, err := parseFstab("x", line, nil)
		if err != nil || len(got) != 1 || got[0].source != source || got[0].target != target || got[0].pass != pass || !slices.Equal(got[0].options, []string{"bind", "ro"}) {
			t.Fatalf("%q: %+v %v", line, got, err)
		}
	})
}

// FuzzEnroot: no file of a user's makes more than variables and mounts of it.
func FuzzEnroot(f *testing.F) {
	for _, s := range []string{"/a\n/a /b\ntmpfs /x\nnone /x devpts\n/a /b none bind,ro 0 -1\n", "A=\"b\"\n#x\nENROOT_Y=1\n\tC=${HOME}\n", `/a\040b /c none bind`, "/a ../../x none bind"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, v := range parseEnviron(s) {
			v = substitute(v, map[string]string{"HOME": "a\nb"})
			if name, _, ok := strings.Cut(v, "="); !ok || !isVariable(name) || strings.HasPrefix(v, "ENROOT_") || strings.ContainsAny(v, "\n\x00") {
				t.Errorf("%q", v)
			}
		}
		entries, err := parseFstab("x", s, map[string]string{"HOME": "/h"})
		if err != nil {
			return
		}
		for _, e := range inPasses(entries) {
			if !isPath(e.target) {
				t.Errorf("%+v", e)
			}
			e.options = append(e.options, "nofail")
			if m, _, err := e.mount(); err != nil || m != nil && m.Type != "tmpfs" && !isPath(m.HostPath) {
				t.Errorf("%+v %v", m, err)
			}
		}
	})
}

// FuzzAnswer: what a hook writes is taken or refused, and what is taken is in order.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"", "{}", `{"version":1}`, `{"version":1,"edits":{"env":["A=1"],"mounts":[{"hostPath":"/a","containerPath":"/b"}],"deviceNodes":[{"path":"/dev/x"}]}}`, `{"version":1,"edits":null,"notes":["x"]} `, `{"version":1,"edits":{"mounts":[null]}}`} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, prepare bool) {
		phase := Stop
		if prepare {
			phase = Prepare
		}
		a, err := decode(b, phase)
		if err != nil || a.Edits == nil {
			return
		}
		if !prepare {
			t.Error("edits are taken too late")
		}
		for _, m := range a.Edits.Mounts {
			if !isPath(m.ContainerPath) {
				t.Errorf("%+v", m)
			}
		}
		for _, d := range a.Edits.DeviceNodes {
			if !isPath(d.Path) {
				t.Errorf("%+v", d)
			}
		}
	})
}
