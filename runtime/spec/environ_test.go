package spec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

func TestParseExport(t *testing.T) {
	for _, c := range []struct {
		in    string
		all   bool
		names string
		set   string
	}{
		{"", true, "", ""},
		{"ALL", true, "", ""},
		{"all", true, "", ""},
		{"NONE", false, "", ""},
		{"NIL", false, "", ""},
		{"nil", false, "", ""},
		{"A", false, "A", ""},
		{"A,B", false, "A B", ""},
		{"ALL,A=1", true, "", "A:1"},
		{"A=1,ALL,B", true, "B", "A:1"},
		{"A=", false, "", "A:"},
		{"A=x=y", false, "", "A:x=y"},
		{"A='x,y',B", false, "B", "A:x,y"},
		{`A="x,y",B=2`, false, "", "A:x,y B:2"},
		{`A="it's"`, false, "", "A:it's"},
		{`NCCL_IB_HCA="mlx5_0:1,mlx5_1:1"`, false, "", "NCCL_IB_HCA:mlx5_0:1,mlx5_1:1"},
		{`A=x"y,z"`, false, "", `A:x"y,z"`},
	} {
		e, err := spec.ParseExport(c.in)
		var set []string
		for _, pair := range e.Set {
			set = append(set, pair[0]+":"+pair[1])
		}
		if err != nil || e.All != c.all || strings.Join(e.Names, " ") != c.names || strings.Join(set, " ") != c.set {
			t.Errorf("%s: %+v, %v", c.in, e, err)
		}
	}
}

func TestParseEnv(t *testing.T) {
	got, err := spec.ParseEnv([]string{"A=1", "B", "GONE", "C=", "A=2=3"}, []string{"AB=0", "B=first", "B=second"})
	if err != nil || strings.Join(got, " ") != "A=1 B=first C= A=2=3" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "=", "=x", "A\nB=1", "A=\x00"} {
		_, err := spec.ParseEnv([]string{"A=1", bad}, nil)
		refused(t, err, "env ")
	}
}

func TestBadExport(t *testing.T) {
	for _, c := range []struct{ name, in, names string }{
		{"empty name", "A,,B", "name is empty"},
		{"trailing comma", "A,", "name is empty"},
		{"no name", "=x", "name is empty"},
		{"open quotes", "A='x,B", "quotes do not end"},
		{"NONE in a list", "NONE,A=1", "NONE"},
		{"NUL", "A=\x00", "NUL"},
		{"space", "A,B C", "B C"},
		{"digit", "ALL,1A=2", "1A"},
		{"quotes around both", `"A=1,2"`, "not the name"},
		{"semicolon", "ALL;B", "ALL;B"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := spec.ParseExport(c.in)
			refused(t, err, "export", c.names)
			r := run("true")
			r.Export = c.in
			_, err = spec.Build(r, debianImage(), ann(), debian())
			refused(t, err, "export", c.names)
		})
	}
}

// TestEnvironment is whose value wins: the caller's by --export, the image's, the
// caller's by --container-env, --env.
func TestEnvironment(t *testing.T) {
	host := ann()
	host.Environ = append(
		host.Environ, "A=caller", "B=caller", "C=caller", "D=caller", "LD_PRELOAD=/host.so", "LD_LIBRARY_PATH=/host", "LANG=C", "LANGUAGE=de", "LC_ALL=C", "LC_TIME=C",
		"LANGUID=1", "PWD=/home/ann/job", "OLDPWD=/", "_=/usr/bin/env", "SLURM_JOB_ID=7", "SPANK_X=1", "A=second", "F()=x\ny", "TWO=a\nb", "EMPTY=",
	)
	img := debianImage()
	img.Env = append(img.Env, "B=image", "C=image", "D=image", "E=image", "LANG=C.UTF-8", "TERM=dumb")
	for _, c := range []struct {
		name string
		edit func(*spec.Request)
		want string
	}{
		{"all", func(*spec.Request) {}, "A=caller B=image C=image E=image SLURM_JOB_ID=7 SPANK_X=1 TWO=a\nb EMPTY= LANGUID=1"},
		{"dropped", func(*spec.Request) {}, "LD_PRELOAD=(unset) LD_LIBRARY_PATH=(unset) LANGUAGE=(unset) LC_ALL=(unset) LC_TIME=C PWD=(unset) OLDPWD=(unset) _=(unset)"},
		{"fixed", func(*spec.Request) {}, "PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/ann TERM=screen LANG=C.UTF-8 USER=ann SHELL=/bin/bash"},
		{"none", func(r *spec.Request) { r.Export = "NONE" }, "A=(unset) USER=(unset) E=image SLURM_JOB_ID=7 SPANK_X=1 TERM=screen HOME=/home/ann PATH=/usr/local/bin:/usr/bin:/bin"},
		{"nil", func(r *spec.Request) { r.Export = "NIL" }, "A=(unset) SLURM_JOB_ID=7"},
		{"list", func(r *spec.Request) { r.Export = "A,LD_PRELOAD,GONE,B,X=1" }, "A=caller B=image USER=(unset) LD_PRELOAD=/host.so GONE=(unset) X=1 SLURM_JOB_ID=7"},
		{"set", func(r *spec.Request) { r.Export = "ALL,A=set,LD_PRELOAD=/mine.so,B=set" }, "A=set LD_PRELOAD=/mine.so B=image"},
		{"set terminal", func(r *spec.Request) { r.Export = "TERM=vt220" }, "TERM=vt220"},
		{"container-env", func(r *spec.Request) { r.ContainerEnv = []string{"B", "GONE", "LD_PRELOAD", "PATH"} }, "B=caller C=image GONE=(unset) LD_PRELOAD=/host.so PATH=/opt/slurm/bin:/usr/bin"},
		{"container-env of a set one", func(r *spec.Request) { r.ContainerEnv, r.Export = []string{"B"}, "B=set" }, "B=set"},
		{"container-env beside none", func(r *spec.Request) { r.ContainerEnv, r.Export = []string{"B"}, "NONE" }, "B=caller"},
		{"env", func(r *spec.Request) { r.Env = []string{"A=env", "B=env", "C", "GONE", "TERM=vt100", "N="} }, "A=env B=env C=caller D=image GONE=(unset) TERM=vt100 N="},
		{"env over container-env", func(r *spec.Request) { r.ContainerEnv, r.Env = []string{"B"}, []string{"B=env"} }, "B=env"},
		{"remap-root", func(r *spec.Request) { r.RemapRoot = true }, "HOME=/root USER=root LOGNAME=root"},
		{"remap-root with a name", func(r *spec.Request) { r.RemapRoot, r.Export = true, "ALL,USER=bob" }, "USER=bob LOGNAME=root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run("true")
			c.edit(&r)
			res := build(t, r, img, host, debian())
			for want := range strings.SplitSeq(c.want, " ") {
				name, value, _ := strings.Cut(want, "=")
				if got := env(res, name); got != value {
					t.Errorf("%s is %q, want %q", name, got, value)
				}
			}
			if !slices.IsSorted(res.Spec.Process.Env) {
				t.Error("not sorted")
			}
		})
	}
}

func TestEnvironmentWithoutImageValues(t *testing.T) {
	r := run("true")
	r.Terminal = true
	host := ann()
	host.Environ = []string{"HOME=/home/ann"}
	res := build(t, r, spec.Image{}, host, tree{})
	for name, want := range map[string]string{"TERM": "xterm", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home/ann"} {
		if got := env(res, name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
}

func TestHome(t *testing.T) {
	img := debianImage()
	img.Env = append(img.Env, "HOME=/opt/app")
	for _, c := range []struct {
		name        string
		mount, root bool
		want        string
	}{
		{"the image's", false, false, "/opt/app"},
		{"the mounted one", true, false, "/home/ann"},
		{"the mounted one as root", true, true, "/root"},
	} {
		r := run("true")
		r.MountHome, r.RemapRoot = c.mount, c.root
		if got := env(build(t, r, img, ann(), debian()), "HOME"); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// TestBadEnvironment is the row "Env" of the list of bad inputs.
func TestBadEnvironment(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(*spec.Request, *spec.Image, *spec.Host)
		names []string
	}{
		{"image NUL", func(_ *spec.Request, i *spec.Image, _ *spec.Host) { i.Env = []string{"A=x\x00LD_PRELOAD=/y"} }, []string{"image", `"A"`, "NUL"}},
		{"image NUL in name", func(_ *spec.Request, i *spec.Image, _ *spec.Host) { i.Env = []string{"A\x00"} }, []string{"image", "NUL"}},
		{"image no name", func(_ *spec.Request, i *spec.Image, _ *spec.Host) { i.Env = []string{"=x"} }, []string{"image", `"=x"`}},
		{"image 2 MiB", func(_ *spec.Request, i *spec.Image, _ *spec.Host) {
			i.Env = []string{"A=" + strings.Repeat("x", 2<<20)}
		}, []string{"variable A", "131071"}},
		{"image a byte too long", func(_ *spec.Request, i *spec.Image, _ *spec.Host) {
			i.Env = []string{"A=" + strings.Repeat("x", 131070)}
		}, []string{"variable A", "131072"}},
		{"image many", func(_ *spec.Request, i *spec.Image, _ *spec.Host) {
			for n := range 30 {
				i.Env = append(i.Env, strings.Repeat("N", n+1)+"="+strings.Repeat("x", 100_000))
			}
		}, []string{"together", "2097152"}},
		{"caller too long", func(_ *spec.Request, _ *spec.Image, h *spec.Host) {
			h.Environ = append(h.Environ, "LS_COLORS="+strings.Repeat("x", 1<<20))
		}, []string{"LS_COLORS"}},
		{"caller NUL", func(_ *spec.Request, _ *spec.Image, h *spec.Host) { h.Environ = append(h.Environ, "A=\x00") }, []string{`"A"`, "NUL"}},
		{"argument too long", func(r *spec.Request, _ *spec.Image, _ *spec.Host) {
			r.Command = append(r.Command, strings.Repeat("x", 1<<18))
		}, []string{"argument 1"}},
		{"container-env value", func(r *spec.Request, _ *spec.Image, _ *spec.Host) { r.ContainerEnv = []string{"A=1"} }, []string{`"A=1"`}},
		{"container-env empty", func(r *spec.Request, _ *spec.Image, _ *spec.Host) { r.ContainerEnv = []string{""} }, []string{"name is empty"}},
		{"env empty", func(r *spec.Request, _ *spec.Image, _ *spec.Host) { r.Env = []string{"=1"} }, []string{`"=1"`}},
		{"env NUL", func(r *spec.Request, _ *spec.Image, _ *spec.Host) { r.Env = []string{"A=\x00"} }, []string{`"A"`, "NUL"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, img, host := run("true"), debianImage(), ann()
			c.edit(&r, &img, &host)
			_, err := spec.Build(r, img, host, debian())
			refused(t, err, c.names...)
		})
	}
}

func TestLongestEnvironment(t *testing.T) {
	img := spec.Image{Env: []string{"A=" + strings.Repeat("x", 131069)}}
	build(t, run("true"), img, ann(), debian())
}

// TestMalformedEnvironment: entries that are no variables are left out, and said so.
func TestMalformedEnvironment(t *testing.T) {
	host := ann()
	host.Environ = append(host.Environ, "=C:=x", "noequals")
	img := debianImage()
	img.Env = append(img.Env, "NOEQUALS", "")
	res := build(t, run("true"), img, host, debian())
	for _, entry := range res.Spec.Process.Env {
		if name, _, ok := strings.Cut(entry, "="); !ok || name == "" {
			t.Errorf("%q came through", entry)
		}
	}
	if notes := strings.Join(res.Notes, "\n"); !strings.Contains(notes, "NOEQUALS") || !strings.Contains(notes, "=C:") || len(res.Notes) != 4 {
		t.Errorf("notes: %s", notes)
	}
}
