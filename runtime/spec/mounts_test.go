package spec_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

func TestParseMounts(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"/x", "bind /x /x rbind"},
		{"/x:/y", "bind /x /y rbind"},
		{"/x:/y:ro", "bind /x /y rbind,ro"},
		{"/x:/y:ro+nosuid+nodev+noexec+rslave", "bind /x /y rbind,ro,nosuid,nodev,noexec,rslave"},
		{"/x:/y:bind+private", "bind /x /y bind,private"},
		{"/x:/y:rbind+ro+ro", "bind /x /y rbind,ro"},
		{"/x:/y:x-move", "bind /x /y x-move"},
		{"/x:/y:defaults+silent+rw", "bind /x /y rbind,rw"},
		{"/x:/y:nostrictatime+nodiratime", "bind /x /y rbind,nodiratime"},
		{"data:/y", "bind /home/ann/job/data /y rbind"},
		{"./data", "bind /home/ann/job/data /data rbind"},
		{"../data:/y", "bind /home/ann/data /y rbind"},
		{"/a/../b//c/:/y/", "bind /b/c /y rbind"},
		{"/x:./y", "bind /x /y rbind"},
		{"/x:/a/../../y", "bind /x /y rbind"},
		{"/my data:/your data:ro", "bind /my data /your data rbind,ro"},
		{"/dev/infiniband", "bind /dev/infiniband /dev/infiniband rbind"},
		{"/munge:/var/run/munge", "bind /munge /var/run/munge rbind"},
		{"/sys/x:/sys/fs/x", "bind /sys/x /sys/fs/x rbind"},
		{"/process:/processes", "bind /process /processes rbind"},
		{"tmpfs:/scratch", "tmpfs  /scratch nosuid,nodev"},
		{"tmpfs:/scratch:size=10g+mode=1777+noexec", "tmpfs  /scratch nosuid,nodev,noexec,size=10g,mode=1777"},
		{"tmpfs:/scratch:suid+dev+size=50%+huge=within_size+nr_inodes=1k", "tmpfs  /scratch suid,dev,size=50%,huge=within_size,nr_inodes=1k"},
		{"./tmpfs:/scratch", "bind /home/ann/job/tmpfs /scratch rbind"},
		{"umount:/mnt", "umount  /mnt x-detach"},
		{"umount:/mnt:x-detach", "umount  /mnt x-detach"},
	} {
		m := parse(t, c.in)
		got := m[0].Type + " " + m[0].Source + " " + m[0].Target + " " + strings.Join(m[0].Options, ",")
		if len(m) != 1 || got != c.want {
			t.Errorf("%s: %d mounts, %q, want %q", c.in, len(m), got, c.want)
		}
	}
}

func TestParseMountsKeepsOrderAndDropsTwins(t *testing.T) {
	var got []string
	for _, m := range parse(t, "/b:/2,/a:/1,/b:/2,/c:/1") {
		got = append(got, m.Source+m.Target)
	}
	if text := strings.Join(got, " "); text != "/b/2 /a/1 /c/1" {
		t.Errorf("got %s", text)
	}
}

// TestBadMounts is the row "Mount flags" of the list of bad inputs.
func TestBadMounts(t *testing.T) {
	long := "/" + strings.Repeat("x", 4096)
	for _, c := range []struct{ name, in, names, hint string }{
		{"empty", "", "empty", "comma"},
		{"trailing comma", "/x:/y,", "empty", "comma"},
		{"leading comma", ",/x", "empty", "comma"},
		{"only colons", "::", "no source", "SRC"},
		{"no source", ":/y", "no source", "SRC"},
		{"no target", "/x:", `""`, "begins with"},
		{"empty flags", "/x:/y:", "empty", "remove"},
		{"empty flag", "/x:/y:ro+", "empty", "remove"},
		{"four fields", "/x:/y:ro:z", "two colons", "colon"},
		{"colon in path", "/a:b:/c:d:ro", "two colons", "parent"},
		{"newline", "/x:/y\n/etc:/z", "control", "line break"},
		{"NUL", "/x:/y\x00", "control", "control"},
		{"escape", "/x:/y\x1b[2J", "control", "control"},
		{"relative target", "/x:y", `"y"`, "begins with"},
		{"relative source alone", "x", `"x"`, "begins with"},
		{"flag as target", "/x:ro", `"ro"`, "/x:/x:ro"},
		{"flag after a comma", "/x:/y:ro,nosuid", `"nosuid"`, "+"},
		{"docker's form", "type=bind", "type=bind", "SRC"},
		{"long source", long + ":/y", "too long", "4095"},
		{"long target", "/x:" + long, "too long", "4095"},
		{"very long", strings.Repeat(long, 10), "too long", "4095"},
		{"over root", "/x:/", "root", "--container-image"},
		{"over root by dot", "/x:.", "root", "--container-image"},
		{"over root by dots", "/x:/a/../..", "root", "--container-image"},
		{"over proc", "/x:/proc", "/proc", "elsewhere"},
		{"below proc", "/x:/proc/self/attr", "/proc", "elsewhere"},
		{"over proc by dots", "/x:/tmp/../proc/", "/proc", "elsewhere"},
		{"over dev", "/x:/dev", "/dev", "/dev/NAME"},
		{"over sys", "/x:/sys/", "/sys", "/sys/NAME"},
		{"host proc", "/proc", "/proc", "elsewhere"},
		{"over descriptors", "/x:/dev/fd", "/dev/fd", "elsewhere"},
		{"below descriptors", "/x:/dev/fd/3", "/dev/fd/3", "elsewhere"},
		{"over stdout", "/dev/null:/dev/stdout", "/dev/stdout", "elsewhere"},
		{"over ptmx", "/dev/null:/dev/ptmx", "/dev/ptmx", "elsewhere"},
		{"below pts", "/x:/dev/pts/0", "/dev/pts/0", "elsewhere"},
		{"tmpfs over null", "tmpfs:/dev/null", "/dev/null", "leave"},
		{"umount of null", "umount:/dev/null", "/dev/null", "leave"},
		{"umount root", "umount:/", "root", ""},
		{"umount proc", "umount:/proc", "/proc", ""},
		{"tmpfs over dev", "tmpfs:/dev", "/dev", ""},
		{"another's root", "/proc/1/root:/y", "/proc/1/root", "itself"},
		{"own root", "/proc/self/root:/y", "/proc/self/root", "itself"},
		{"own descriptor", "/proc/self/fd/7:/y", "/proc/self/fd/7", "itself"},
		{"thread", "/proc/thread-self/cwd:/y", "thread-self", "itself"},
		{"hidden descriptor", "/tmp/../proc//self/./fd/7:/y", "/proc/self/fd/7", "itself"},
		{"dev fd", "/dev/fd/3:/y", "/dev/fd/3", "itself"},
		{"dev stdin", "/dev/stdin:/y", "/dev/stdin", "itself"},
		{"tmpfs alone", "tmpfs", "where", "tmpfs:/path"},
		{"umount alone", "umount", "where", "umount:/path"},
		{"unknown flag", "/x:/y:readonly", `"readonly"`, "one of"},
		{"near flag", "/x:/y:nosiud", `"nosiud"`, "did you mean: nosuid"},
		{"near creation", "/x:/y:x-create=dri", `"x-create=dri"`, "did you mean: x-create=dir"},
		{"near data", "tmpfs:/y:sise=1g", `"sise=1g"`, "did you mean: size="},
		{"upper case", "/x:/y:RO", `"RO"`, "did you mean: ro"},
		{"docker's label", "/x:/y:z", `"z"`, ""},
		{"overlay's data", "/x:/y:lowerdir=/etc", `"lowerdir=/etc"`, ""},
		{"contradiction", "/x:/y:ro+rw", "contradicts ro", "leave"},
		{"contradiction of atime", "/x:/y:noatime+strictatime", "contradicts", "leave"},
		{"two propagations", "/x:/y:rslave+rshared", "contradicts", "leave"},
		{"two binds", "/x:/y:bind+rbind", "contradicts", "leave"},
		{"size of a bind", "/x:/y:size=1g", "tmpfs", "tmpfs:/y"},
		{"bind of a tmpfs", "tmpfs:/y:rbind", "tmpfs", "leave"},
		{"tmpfs file", "tmpfs:/y:x-create=file", "directory", "leave"},
		{"detach of a bind", "/x:/y:x-detach", "umount", "umount:/y"},
		{"flag of umount", "umount:/y:ro", "umount", "umount:/y"},
		{"size", "tmpfs:/y:size=lots", "size=lots", "percentage"},
		{"size empty", "tmpfs:/y:size=", "size=", "percentage"},
		{"size negative", "tmpfs:/y:size=-1", "size=-1", "percentage"},
		{"size huge", "tmpfs:/y:size=99999999999999999999", "size=", "percentage"},
		{"mode", "tmpfs:/y:mode=999", "mode=999", "octal"},
		{"mode big", "tmpfs:/y:mode=17777", "mode=17777", "octal"},
		{"data in data", "tmpfs:/y:mpol=a:b c", "two colons", ""},
		{"uid", "tmpfs:/y:uid=0", `"uid=0"`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := spec.ParseMounts(c.in, "/home/ann/job")
			refused(t, err, c.names)
			if text := fault.Text("gangway", err, false); !strings.Contains(text, c.hint) {
				t.Errorf("no %q in:\n%s", c.hint, text)
			}
			if fault.Code(err) != fault.CodeUsage {
				t.Errorf("exit code %d", fault.Code(err))
			}
		})
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		source string
		kind   spec.Kind
		create string
	}{
		{dir, spec.Directory, "x-create=dir"},
		{name, spec.RegularFile, "x-create=file"},
		{"/dev/null", spec.Device, "x-create=file"},
	} {
		m := parse(t, c.source+":/mnt/a")
		if err := m[0].Check(os.Stat); err != nil || m[0].Kind != c.kind {
			t.Errorf("%s: kind %d, %v", c.source, m[0].Kind, err)
		}
		r := run("true")
		r.Mounts = m
		if got := mountsAt(build(t, r, debianImage(), ann(), debian()), "/mnt/a"); len(got) != 1 || got[0] != "bind "+c.source+" /mnt/a rbind,"+c.create {
			t.Errorf("%s: %q", c.source, got)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	squashed := func(string) (fs.FileInfo, error) {
		return nil, &fs.PathError{Op: "stat", Path: "/nfs/x", Err: syscall.EACCES}
	}
	missing := func(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist }
	for _, c := range []struct {
		name, in string
		stat     func(string) (fs.FileInfo, error)
		want     string
		hint     string
	}{
		{"missing", "/x", missing, "mount /x: source path does not exist", "nofail"},
		{"missing relative", "x:/y", missing, "mount /home/ann/job/x: source path does not exist", "directory of the call"},
		{"tilde", "~/x:/y", missing, "source path does not exist", "$HOME"},
		{"space", "/x :/y", missing, "source path does not exist", "space"},
		{"root squash", "/nfs/x", squashed, "/nfs/x", "root_squash"},
		{"directory as file", "/:/y:x-create=file", os.Stat, "x-create=file", "leave"},
		{"file as directory", "/dev/null:/y:x-create=dir", os.Stat, "x-create=dir", "leave"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := parse(t, c.in)
			err := m[0].Check(c.stat)
			refused(t, err, c.want)
			if text := fault.Text("gangway", err, false); !strings.Contains(text, c.hint) {
				t.Errorf("no %q in:\n%s", c.hint, text)
			}
		})
	}
	m := parse(t, "/x")
	if err := m[0].Check(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not ErrNotExist", err)
	}
}

func TestNofail(t *testing.T) {
	r := run("true")
	r.Mounts = parse(t, "/x:/mnt/a:nofail")
	if err := r.Mounts[0].Check(func(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist }); err != nil {
		t.Fatal(err)
	}
	res := build(t, r, debianImage(), ann(), debian())
	if got := mountsAt(res, "/mnt/a"); got != nil || !strings.Contains(strings.Join(res.Notes, "\n"), "/x") {
		t.Errorf("%q, notes %q", got, res.Notes)
	}
	// The word is for Gangway alone: mount(8) knows it, the kernel does not.
	r.Mounts[0].Kind = spec.Directory
	if got := mountsAt(build(t, r, debianImage(), ann(), debian()), "/mnt/a"); strings.Contains(strings.Join(got, " "), "nofail") {
		t.Errorf("%q", got)
	}
}
