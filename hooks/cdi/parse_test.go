package cdi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// good is a specification with everything in it.
const good = `cdiVersion: "1.1.0"
kind: acme.com/thing
annotations: {acme.com/rack: "7", Name: x}
containerEdits:
  env: [ACME=1]
  mounts:
  - {hostPath: /opt/acme, containerPath: /opt/acme, options: [ro, rbind]}
devices:
- name: "0"
  annotations: {Env: y}
  containerEdits:
    deviceNodes:
    - {path: /dev/acme0, hostPath: /dev/zero, permissions: rw, fileMode: 0660, uid: 0, gid: 4}
    hooks:
    - {hookName: createContainer, path: /usr/bin/acme, args: [acme, x], env: [A=b], timeout: 3}
    additionalGids: [44]
    intelRdt: {closID: gold, schemata: ["L3:0=f"], enableMonitoring: true}
    netDevices:
    - {hostInterfaceName: eth7, name: eth0}
`

func TestParse(t *testing.T) {
	spec, err := cdi.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	node := spec.Devices[0].ContainerEdits.DeviceNodes[0]
	if spec.Kind != "acme.com/thing" || node.HostPath != "/dev/zero" || node.FileMode == nil || *node.FileMode != 0o660 || *node.GID != 4 {
		t.Fatalf("%+v, node %+v", spec, node)
	}
	js := `{"cdiVersion":"0.6.0","kind":"acme.com/thing","annotations":{"Kind":"free"},"devices":[{"name":"a:b.c","containerEdits":{"env":["A=\ud83d\ude00"]}}]}` + "\n"
	spec, err = cdi.Parse([]byte(js))
	if err != nil {
		t.Fatal(err)
	}
	if got := spec.Devices[0].ContainerEdits.Env[0]; got != "A=\U0001F600" || spec.Annotations["Kind"] != "free" {
		t.Fatalf("%q %v", got, spec.Annotations)
	}
}

// edit puts edits into an otherwise good specification.
func edit(edits string) string {
	return `{"cdiVersion":"1.1.0","kind":"acme.com/thing","devices":[{"name":"0","containerEdits":{` + edits + `}}]}`
}

func node(fields string) string { return edit(`"deviceNodes":[{` + fields + `}]`) }

func mount(fields string) string { return edit(`"mounts":[{` + fields + `}]`) }

// TestBadSpecs: each is refused, with a text that says what is wrong.
func TestBadSpecs(t *testing.T) {
	var alias strings.Builder
	alias.WriteString("a: &a [x,x,x,x,x,x,x,x,x]\n")
	for i := range 12 {
		fmt.Fprintf(&alias, "%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", 'b'+i, 'b'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i)
	}
	for _, c := range []struct{ name, spec, want string }{
		{"nothing", "", "empty"},
		{"null", "null", "empty"},
		{"a word", "hello", "YAML"},
		{"a list", "[]", "YAML"},
		{"bytes", "\x00\xff\xfe", "YAML"},
		{"too big", strings.Repeat(" ", cdi.MaxFile+1), "more than"},
		{"half", `{"cdiVersion":"1.1.0"`, "EOF"},
		{"something behind", edit(`"env":["A=b"]`) + "{}", "follow"},
		{"two documents", good + "---\n" + good, "second"},
		{"unknown field", edit(`"env":["A=b"],"privileged":true`), "privileged"},
		{"unknown field in YAML", good + "privileged: true\n", "privileged"},
		{"field with capitals", strings.Replace(edit(`"env":["A=b"]`), "kind", "Kind", 1), `written "kind"`},
		{"field with a Kelvin sign", strings.Replace(edit(`"env":["A=b"]`), "kind", "\u212aind", 1), `written "kind"`},
		{"key twice", edit(`"env":["A=b"],"env":["A=c"]`), "twice"},
		{"key twice, once in other letters", edit(`"env":["A=b"],"\u0065nv":["A=c"]`), "twice"},
		{"key with capitals behind annotations", `{"cdiVersion":"1.1.0","kind":"acme.com/thing","devices":[{"annotations":{"annotations":"x"},"name":"0","containerEdits":{"env":["A=b"]}},{"Name":"1","containerEdits":{"env":["A=b"]}}]}`, `written "name"`},
		{"annotation twice", strings.Replace(edit(`"env":["A=b"]`), `"name":"0"`, `"name":"0","annotations":{"a":"b","a":"c"}`, 1), "twice"},
		{"key twice in YAML", good + "kind: other.com/x\n", "already defined"},
		{"deep JSON", `{"devices":` + strings.Repeat("[", 100000), "max depth"},
		{"deep YAML", "a: " + strings.Repeat("[", 100000), "YAML"},
		{"aliases that explode", alias.String(), "YAML"},
		{"no version", strings.Replace(edit(`"env":["A=b"]`), "1.1.0", "", 1), "cdiVersion"},
		{"a later version", strings.Replace(edit(`"env":["A=b"]`), "1.1.0", "2.0.0", 1), "cdiVersion"},
		{"too old for a field", strings.Replace(edit(`"additionalGids":[4]`), "1.1.0", "0.6.0", 1), "at least v0.7.0"},
		{"no kind", strings.Replace(edit(`"env":["A=b"]`), "acme.com/thing", "", 1), "kind"},
		{"kind without class", strings.Replace(edit(`"env":["A=b"]`), "acme.com/thing", "acme.com/", 1), "class is empty"},
		{"kind with three parts", strings.Replace(edit(`"env":["A=b"]`), "acme.com/thing", "acme.com/a/b", 1), "class"},
		{"kind that begins with a digit", strings.Replace(edit(`"env":["A=b"]`), "acme.com/thing", "7.com/thing", 1), "letter"},
		{"kind with a letter that looks like one", strings.Replace(edit(`"env":["A=b"]`), "acme.com/thing", "аcme.com/thing", 1), "vendor"},
		{"no devices", `{"cdiVersion":"1.1.0","kind":"acme.com/thing","devices":[]}`, "no devices"},
		{"device twice", `{"cdiVersion":"1.1.0","kind":"acme.com/thing","devices":[{"name":"0","containerEdits":{"env":["A=b"]}},{"name":"0","containerEdits":{"env":["A=b"]}}]}`, "twice"},
		{"device without a name", strings.Replace(edit(`"env":["A=b"]`), `"name":"0"`, `"name":""`, 1), "empty"},
		{"device with a path", strings.Replace(edit(`"env":["A=b"]`), `"name":"0"`, `"name":"../0"`, 1), "begin"},
		{"device with a line break", strings.Replace(edit(`"env":["A=b"]`), `"name":"0"`, `"name":"0\n1"`, 1), "not allowed"},
		{"device that does nothing", edit(``), "no edits"},
		{"variable without value", edit(`"env":["LD_PRELOAD"]`), "NAME=VALUE"},
		{"variable without name", edit(`"env":["=x"]`), "NAME=VALUE"},
		{"variable with a zero byte", edit(`"env":["A=\u0000"]`), "zero byte"},
		{"variable of 200 KiB", edit(`"env":["A=` + strings.Repeat("x", 200<<10) + `"]`), "bytes long"},
		{"node null", edit(`"deviceNodes":[null]`), "null"},
		{"node without path", node(`"hostPath":"/dev/zero"`), "no path"},
		{"node that is relative", node(`"path":"dev/zero"`), "absolute"},
		{"node that leads out", node(`"path":"/dev/../../etc/passwd"`), "upwards"},
		{"host's node that leads out", node(`"path":"/dev/a","hostPath":"/dev/../etc/shadow"`), "upwards"},
		{"node with a zero byte", node(`"path":"/dev/a\u0000b"`), "zero byte"},
		{"node over the root", node(`"path":"//."`), "over"},
		{"node over /dev", node(`"path":"/dev/"`), "over"},
		{"node over /dev/null", node(`"path":"/dev/null","hostPath":"/dev/sda"`), "over"},
		{"node of no type", node(`"path":"/dev/a","type":"s"`), "type"},
		{"node with odd permissions", node(`"path":"/dev/a","permissions":"rwx"`), "permissions"},
		{"node with a negative number", node(`"path":"/dev/a","type":"c","major":-1`), "device number"},
		{"node with a huge number", node(`"path":"/dev/a","type":"c","major":99999999999`), "device number"},
		{"owner that overflows", node(`"path":"/dev/a","uid":4294967296`), "uid"},
		{"negative owner", node(`"path":"/dev/a","gid":-1`), "gid"},
		{"mode that is text", node(`"path":"/dev/a","fileMode":"0666"`), "fileMode"},
		{"mount null, which the library's check of versions follows", strings.NewReplacer("1.1.0", "0.3.0", `"name":"0"`, `"name":"a"`).Replace(edit(`"mounts":[null]`)), "null"},
		{"mount null", edit(`"mounts":[null]`), "null"},
		{"mount without source", mount(`"containerPath":"/a"`), "no source"},
		{"mount without target", mount(`"hostPath":"/a"`), "no path"},
		{"mount of a relative path", mount(`"hostPath":"a","containerPath":"/a"`), "absolute"},
		{"mount over /", mount(`"hostPath":"/","containerPath":"/"`), "over"},
		{"mount over /dev", mount(`"hostPath":"/dev","containerPath":"/dev/."`), "over"},
		{"mount over /proc", mount(`"hostPath":"/tmp","containerPath":"/proc"`), "over"},
		{"mount over a process", mount(`"hostPath":"/tmp","containerPath":"/proc/self/attr"`), "process's own"},
		{"mount over process 1", mount(`"hostPath":"/tmp","containerPath":"/proc/1/fd"`), "process's own"},
		{"mount over terminals", mount(`"hostPath":"/tmp","containerPath":"/dev/pts/0"`), "process's own"},
		{"mount that leads out", mount(`"hostPath":"/a","containerPath":"/usr/../../etc"`), "upwards"},
		{"mount with a long path", mount(`"hostPath":"/a","containerPath":"/` + strings.Repeat("x", 5000) + `"`), "bytes"},
		{"hook null", edit(`"hooks":[null]`), "null"},
		{"hook of no phase", edit(`"hooks":[{"hookName":"now","path":"/a"}]`), "none of"},
		{"hook without path", edit(`"hooks":[{"hookName":"poststop"}]`), "no path"},
		{"hook that is relative", edit(`"hooks":[{"hookName":"poststop","path":"evil"}]`), "absolute"},
		{"hook with no time", edit(`"hooks":[{"hookName":"poststop","path":"/a","timeout":0}]`), "timeout"},
		{"hook with a bad variable", edit(`"hooks":[{"hookName":"poststop","path":"/a","env":["x"]}]`), "NAME=VALUE"},
		{"class of service that leads out", edit(`"intelRdt":{"closID":"../x"}`), "file name"},
		{"class of service ..", edit(`"intelRdt":{"closID":".."}`), "file name"},
		{"network device null", edit(`"netDevices":[null]`), "null"},
		{"network device without name", edit(`"netDevices":[{"hostInterfaceName":"eth0","name":""}]`), "no name"},
		{"network device twice", edit(`"netDevices":[{"hostInterfaceName":"eth0","name":"a"},{"hostInterfaceName":"eth0","name":"b"}]`), "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, err := cdi.Parse([]byte(c.spec))
			if err == nil {
				t.Fatalf("taken: %+v", spec)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q does not say %q", err, c.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestParseName(t *testing.T) {
	for _, text := range []string{"nvidia.com/gpu=0", "amd.com/gpu=0000:03:00.0", "a/b=c", "a.b-c_d/x.y=MIG-12:3", "v/c=all"} {
		n, err := cdi.ParseName(text)
		if err != nil || n.String() != text {
			t.Errorf("%q: %v %v", text, n, err)
		}
	}
	for _, text := range []string{"", "0", "=", "/dev/nvidia0", "gpu=0", "/gpu=0", "a/=0", "a/b=", "a/b=-", "a/b=0=1", "a/b/c=0", "a /b=0", "a/b=0\n", "a/b=\xff", "1/b=0", "a/1=0", "a/b=" + strings.Repeat("x", 300), "a/" + strings.Repeat("x", 64) + "=0"} {
		_, err := cdi.ParseName(text)
		f := (*fault.Error)(nil)
		if !errors.As(err, &f) || f.Code != fault.CodeUsage || !strings.Contains(f.Hint, "amd.com/gpu=0") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzParse: nothing panics or hangs, and what we take the CDI library takes too, so
// that no file means one thing to it and another to us.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(edit(`"env":["A=b"],"mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro"],"type":"bind"}]`)))
	f.Add([]byte(node(`"path":"/dev/a","type":"c","major":1,"minor":3,"fileMode":438,"permissions":"none"`)))
	f.Add([]byte(edit(`"deviceNodes":[null],"hooks":[null],"mounts":[null]`)))
	f.Add([]byte(`{"cdiVersion":"0.3.0","kind":"a.b/c","devices":[{"name":"a","containerEdits":{"mounts":[null]}}]}`))
	f.Add([]byte("{}\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := cdi.Parse(data)
		if err != nil {
			return
		}
		theirs, err := upstream.ParseSpec(data)
		if err != nil {
			// Known: JSON with what YAML has not, such as control characters or escaped
			// surrogates, which only their YAML parser refuses.
			if text := strings.TrimSpace(string(data)); !strings.HasPrefix(text, "{") {
				t.Fatalf("taken, but not by the CDI library: %v", err)
			}
			return
		}
		if theirs.Kind != spec.Kind || len(theirs.Devices) != len(spec.Devices) {
			t.Fatalf("%q with %d devices, they say %q with %d", spec.Kind, len(spec.Devices), theirs.Kind, len(theirs.Devices))
		}
		for i, d := range spec.Devices {
			name := spec.Kind + "=" + d.Name
			if _, err := cdi.ParseName(name); err != nil || !parser.IsQualifiedName(name) {
				t.Fatalf("%q: %v, theirs %v", name, err, parser.IsQualifiedName(name))
			}
			e := &upstream.ContainerEdits{ContainerEdits: &theirs.Devices[i].ContainerEdits}
			if err := e.Validate(); err != nil {
				t.Fatalf("taken, but not by the CDI library: %v", err)
			}
		}
	})
}

// FuzzParseName: we take what the CDI library takes, but for names longer than any.
func FuzzParseName(f *testing.F) {
	for _, text := range []string{"nvidia.com/gpu=0", "a/b=c", "/b=c", "a/b=", "a.b-c_d/x.y=MIG-12:3", "a/b=c=d", "a/b/c=d", "a-/b=c", "a/b=\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := cdi.ParseName(text)
		_, _, _, theirs := parser.ParseQualifiedName(text)
		if err == nil && (name.String() != text || theirs != nil) {
			t.Fatalf("%q is %q, theirs %v", text, name, theirs)
		}
		if err != nil && theirs == nil && len(text) < 64 {
			t.Fatalf("%q: %v, but they take it", text, err)
		}
	})
}
