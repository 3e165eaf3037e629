package spec_test

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

func destinations(res *spec.Result) string {
	var list []string
	for _, m := range res.Spec.Mounts {
		list = append(list, m.Destination)
	}
	return strings.Join(list, " ")
}

func TestMountsInOrder(t *testing.T) {
	const kernel = "/proc /sys /dev /dev/pts /dev/shm /dev/mqueue "
	const volatile = kernel + "/tmp /run /run/lock "
	for _, c := range []struct {
		name, mounts string
		edit         func(*spec.Request, *spec.Host)
		want         string
	}{
		{"plain", "", nil, volatile + "/home/ann"},
		{"writable", "", func(r *spec.Request, _ *spec.Host) { r.Writable = true }, strings.TrimSpace(kernel)},
		{"as root", "", func(r *spec.Request, _ *spec.Host) { r.RemapRoot = true }, strings.TrimSpace(volatile)},
		{"with home", "", func(r *spec.Request, _ *spec.Host) { r.MountHome = true }, volatile + "/home/ann"},
		{"home in the root", "", func(_ *spec.Request, h *spec.Host) { h.Home = "/" }, strings.TrimSpace(volatile)},
		{"no home", "", func(_ *spec.Request, h *spec.Host) { h.Home = "" }, strings.TrimSpace(volatile)},
		{"machine id", "", func(_ *spec.Request, h *spec.Host) { h.MachineID = "/etc/machine-id" }, volatile + "/etc/machine-id /home/ann"},
		{"machine id below the user's etc", "/x:/etc", func(_ *spec.Request, h *spec.Host) { h.MachineID = "/etc/machine-id" }, volatile + "/home/ann /etc"},
		{"user's in their order", "/b:/2,/a:/1,/c:/2/3", nil, volatile + "/home/ann /2 /1 /2/3"},
		{"user's tmp", "/b:/tmp", nil, kernel + "/run /run/lock /home/ann /tmp"},
		{"user's run", "/b:/run", nil, kernel + "/tmp /home/ann /run"},
		{"user's shm", "/dev/shm", nil, "/proc /sys /dev /dev/pts /dev/mqueue /tmp /run /run/lock /home/ann /dev/shm"},
		{"user's home", "/home/ann", nil, volatile + "/home/ann"},
		{"user's homes", "/home", nil, volatile + "/home"},
		{"devices", "/dev/nvidia0,/dev/infiniband", nil, volatile + "/home/ann /dev/nvidia0 /dev/infiniband"},
		{"unmounted", "umount:/tmp", nil, kernel + "/run /run/lock /home/ann"},
		{"unmounted with what is below", "/x:/run/x,umount:/run", nil, kernel + "/tmp /home/ann"},
		{"unmounted, then mounted", "umount:/tmp,/x:/tmp", nil, kernel + "/run /run/lock /home/ann /tmp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, h := run("true"), ann()
			if c.mounts != "" {
				r.Mounts = parse(t, c.mounts)
			}
			if c.edit != nil {
				c.edit(&r, &h)
			}
			res := build(t, r, debianImage(), h, debian())
			if got := destinations(res); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if len(res.Umounts) != 0 {
				t.Errorf("unmounts %q", res.Umounts)
			}
		})
	}
}

func TestUmounts(t *testing.T) {
	for in, want := range map[string]string{
		"umount:/sys/fs/cgroup":                              "/sys/fs/cgroup",
		"/x:/mnt,umount:/mnt/a,umount:/mnt/b,umount:/mnt/a/": "/mnt/a /mnt/b",
		"/y:/mnt,umount:/mnt/a,/x:/mnt/a":                    "",
		"/y:/mnt,umount:/mnt/a,/x:/mnt/a/b":                  "",
		"/y:/mnt,umount:/mnt/a,/x:/mnt":                      "/mnt/a",
		"umount:/mnt:nofail":                                 "",
		"/x:/data,umount:/data/sub,umount:/data/other/deep":  "/data/sub /data/other/deep",
	} {
		r := run("true")
		r.Mounts = parse(t, in)
		if got := strings.Join(build(t, r, debianImage(), ann(), debian()).Umounts, " "); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// TestUmountNothing: what is not mounted is named before the kernel says EINVAL.
func TestUmountNothing(t *testing.T) {
	for _, in := range []string{"umount:/mnt/a", "umount:/tmp/x", "/x:/mnt/a,umount:/mnt/a,umount:/mnt/a:x-detach", "/x:/mnt:bind,umount:/mnt/a"} {
		r := run("true")
		r.Mounts = parse(t, in)
		_, err := spec.Build(r, debianImage(), ann(), debian())
		refused(t, err, "nothing is mounted")
	}
}

// TestDeviceNodes: a directory cannot be mounted on a device of /dev.
func TestDeviceNodes(t *testing.T) {
	r := run("true")
	r.Mounts = []spec.Mount{{Text: "/x:/dev/null", Type: spec.Bind, Source: "/x", Target: "/dev/null", Kind: spec.Directory}}
	_, err := spec.Build(r, debianImage(), ann(), debian())
	refused(t, err, "/dev/null", "directory")
	r.Mounts[0].Kind = spec.Device
	build(t, r, debianImage(), ann(), debian())
}

// TestUmask: the caller's goes in.
func TestUmask(t *testing.T) {
	h := ann()
	if u := build(t, run("true"), debianImage(), h, debian()).Spec.Process.User.Umask; u != nil {
		t.Errorf("unknown, and it is %o", *u)
	}
	mask := uint32(0o027)
	h.Umask = &mask
	if u := build(t, run("true"), debianImage(), h, debian()).Spec.Process.User.Umask; u == nil || *u != 0o027 || u == &mask {
		t.Errorf("umask %v", u)
	}
}

func TestSizes(t *testing.T) {
	r := run("true")
	h := ann()
	h.MemTotal = 0
	if got := mountsAt(build(t, r, debianImage(), h, debian()), "/dev/shm"); strings.Contains(got[0], "size") {
		t.Errorf("%q", got)
	}
	r.ShmSize, r.TmpSize = 1<<30, 1<<20
	res := build(t, r, debianImage(), ann(), debian())
	for target, want := range map[string]string{
		"/dev/shm": "nosuid,nodev,mode=1777,size=1073741824,x-create=dir", "/tmp": "nosuid,nodev,mode=1777,size=1048576,x-create=dir",
		"/home/ann": "nosuid,nodev,mode=0700,x-create=dir,size=1048576",
	} {
		if got := mountsAt(res, target); got[0] != "tmpfs tmpfs "+target+" "+want {
			t.Errorf("%q", got)
		}
	}
	r.TmpSize = -1
	_, err := spec.Build(r, debianImage(), ann(), debian())
	refused(t, err, "negative")
}

func TestMountHome(t *testing.T) {
	r := run("true")
	r.MountHome = true
	if got := mountsAt(build(t, r, debianImage(), ann(), debian()), "/home/ann"); got[0] != "bind /home/ann /home/ann rbind,x-create=dir" {
		t.Errorf("%q", got)
	}
	r.RemapRoot = true
	if got := mountsAt(build(t, r, debianImage(), ann(), debian()), "/root"); got[0] != "bind /home/ann /root rbind,x-create=dir" {
		t.Errorf("%q", got)
	}
	for _, home := range []string{"", "/", "x", "/home/a\nb", "//"} {
		h := ann()
		h.Home = home
		_, err := spec.Build(r, debianImage(), h, debian())
		refused(t, err, "mount home")
	}
	r.RemapRoot = false
	for _, home := range []string{"/proc/x", "/dev"} {
		h := ann()
		h.Home = home
		_, err := spec.Build(r, debianImage(), h, debian())
		refused(t, err, "mount home", home)
	}
}

// TestWritable: a container with a layer of its own keeps /tmp, /run and the home
// in it.
func TestWritable(t *testing.T) {
	r := run("true")
	r.Writable = true
	res := build(t, r, debianImage(), ann(), tree{})
	if res.Spec.Root.Readonly {
		t.Error("read-only")
	}
	for _, dir := range []string{"/tmp", "/home/ann"} {
		if !slices.Contains(res.Mountpoints, spec.Mountpoint{Path: dir, Dir: true}) {
			t.Errorf("no %s among %v", dir, res.Mountpoints)
		}
	}
	if !build(t, run("true"), debianImage(), ann(), debian()).Spec.Root.Readonly {
		t.Error("writable without being asked")
	}
}

func TestMountpoints(t *testing.T) {
	r := run("true")
	r.Mounts = parse(t, "/x:/data,/y:/data/sub,/z:/mnt/file:x-create=file,/w:/tmp/w")
	var got []string
	for _, m := range build(t, r, debianImage(), ann(), debian()).Mountpoints {
		if got = append(got, m.Path); !m.Dir {
			got[len(got)-1] += "(file)"
		}
	}
	if text := strings.Join(got, " "); text != "/proc /sys /dev /tmp /run /home/ann /data /mnt/file(file)" {
		t.Errorf("got %s", text)
	}
	for _, m := range build(t, r, debianImage(), ann(), debian()).Spec.Mounts {
		create := strings.Contains(strings.Join(m.Options, ","), "x-create=")
		if own := m.Destination == "/proc" || m.Destination == "/sys" || m.Destination == "/dev"; create == own {
			t.Errorf("%s", show(m))
		}
	}
}

// TestBuildRefusesMounts: Build does not trust that mounts were parsed.
func TestBuildRefusesMounts(t *testing.T) {
	for _, m := range []spec.Mount{
		{Type: spec.Bind, Source: "/x", Target: "/"},
		{Type: spec.Bind, Source: "/x", Target: "/a/../proc"},
		{Type: spec.Tmpfs, Target: "/dev"},
		{Type: spec.Umount, Target: "/sys"},
	} {
		r := run("true")
		r.Mounts = []spec.Mount{m}
		_, err := spec.Build(r, debianImage(), ann(), debian())
		refused(t, err)
	}
	r := run("true")
	r.Mounts = []spec.Mount{{Type: "ext4", Target: "/x"}}
	if _, err := spec.Build(r, debianImage(), ann(), debian()); err == nil {
		t.Error("an unknown type was accepted")
	}
}

// TestSettle is the row "/dev, /proc, /sys, /tmp as symlink or file in image", and
// mounts asked for that a link of the image turns elsewhere.
func TestSettle(t *testing.T) {
	for _, c := range []struct{ name, link, to, mounts string }{
		{"proc", "/proc", "/tmp", ""},
		{"sys", "/sys", "/etc", ""},
		{"dev", "/dev", "/etc", ""},
		{"dev to host", "/dev", "../../../dev2", ""},
		{"tmp to proc", "/tmp", "/proc", ""},
		{"tmp to root", "/tmp", "/", ""},
		{"run to dev", "/run", "/dev", ""},
		{"home to sys", "/home/ann", "/sys", ""},
		{"data to proc", "/data", "proc/self", "/x:/data"},
		{"parent to proc", "/data", "/proc", "/x:/data/fs"},
		{"data to dev", "/data", "/dev", "/x:/data"},
		{"working directory to a descriptor", "/app", "/proc/self/fd/8", ""},
		{"working directory to a descriptor of /dev", "/app", "/dev/fd/8", ""},
		{"working directory to /dev", "/app", "/dev/shm", ""},
		{"requested one to a descriptor", "/job", "/dev/fd/8", "workdir"},
		{"requested one to the processes", "/job", "/proc/self/cwd", "workdir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := debian()
			for name := range root {
				if strings.HasPrefix(name, c.link+"/") {
					delete(root, name)
				}
			}
			root[c.link] = "-> " + c.to
			r := run("true")
			if c.mounts == "workdir" {
				r.Workdir = c.link
				root[c.to+"/"] = "" // a decoy of the image
			} else if c.mounts != "" {
				r.Mounts = parse(t, c.mounts)
			}
			res := build(t, r, spec.Image{WorkingDir: "/app"}, ann(), root)
			refused(t, res.Settle(root.mountpoint), c.link, root.real(c.to))
		})
	}
	res := build(t, run("true"), debianImage(), ann(), debian())
	err := res.Settle(func(path string, _ bool) (string, error) {
		if path == "/tmp" {
			return "", syscall.ENOTDIR
		}
		return path, nil
	})
	if refused(t, err, "/tmp"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%v", err)
	}
}

// TestSettleFollows: links that lead where a mount may be are followed.
func TestSettleFollows(t *testing.T) {
	root := debian()
	root["/tmp"] = "-> /var/tmp"
	delete(root, "/tmp/")
	root["/home"] = "-> /u"
	root["/app"] = "-> /"
	r := run("true")
	r.Mounts = parse(t, "/munge:/var/run/munge")
	res := build(t, r, spec.Image{WorkingDir: "/app"}, ann(), root)
	if err := res.Settle(root.mountpoint); err != nil {
		t.Fatal(err)
	}
	if got := destinations(res); got != "/proc /sys /dev /dev/pts /dev/shm /dev/mqueue /var/tmp /run /run/lock /u/ann /run/munge" {
		t.Errorf("got %s", got)
	}
}

// TestAccessTimes: flags about access times are left out of what is the host's, whose own
// the kernel keeps, and that is said; a tmpfs has its own.
func TestAccessTimes(t *testing.T) {
	r := run("true")
	r.Mounts = parse(t, "/data:/data:ro+noatime+nodiratime,/data:/more:ro,tmpfs:/scratch:noatime")
	res := build(t, r, debianImage(), ann(), debian())
	var options []string
	for _, m := range res.Spec.Mounts[len(res.Spec.Mounts)-3:] {
		options = append(options, strings.Join(m.Options, "+"))
	}
	if got := strings.Join(options, " "); got != "rbind+ro+x-create=dir rbind+ro+x-create=dir nosuid+nodev+noatime+x-create=dir" {
		t.Errorf("got %s", got)
	}
	notes := strings.Join(res.Notes, "\n")
	if strings.Count(notes, "access times") != 1 || !strings.Contains(notes, "/data:/data:ro+noatime+nodiratime") {
		t.Errorf("notes: %s", notes)
	}
}

// TestLocaltime: the machine's time zone, also where the image has one.
func TestLocaltime(t *testing.T) {
	h := ann()
	h.Localtime = []byte("TZif")
	root := debian()
	root["/etc/localtime"] = "-> /usr/share/zoneinfo/UTC"
	for _, f := range build(t, run("true"), debianImage(), h, root).Files {
		if f.Path == "/etc/localtime" && string(f.Content) == "TZif" {
			return
		}
	}
	t.Error("no /etc/localtime")
}
