package cdi_test

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
)

// drawEdits makes edits of a few names, so that many are there twice. Nodes and files
// are such as every machine has.
func drawEdits(t *rapid.T, label string) *specs.ContainerEdits {
	pick := func(what string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label+what) }
	count := func(what string) int { return rapid.IntRange(0, 4).Draw(t, label+what) }
	e := &specs.ContainerEdits{}
	for range count("env") {
		e.Env = append(e.Env, pick("name", "A", "B", "PATH", "C=")+"="+pick("value", "", "1", "2"))
	}
	for range count("nodes") {
		node := pick("node", "/dev/zero", "/dev/full", "/dev/fuse", "/dev/urandom")
		inside := pick("inside", "/dev/acme0", "/dev/acme1", "/dev/x/y", "/dev/fuse")
		e.DeviceNodes = append(e.DeviceNodes, &specs.DeviceNode{Path: inside, HostPath: node, Permissions: pick("access", "", "r", "rw", "none")})
	}
	for range count("mounts") {
		m := &specs.Mount{HostPath: pick("source", "/", "/etc", "/etc/passwd"), ContainerPath: pick("target", "/a", "/a/b", "/a/b/c", "/ab", "/d/e", "/d")}
		m.Options = []string{"rbind", pick("option", "ro", "rw")}
		e.Mounts = append(e.Mounts, m)
	}
	for range count("hooks") {
		e.Hooks = append(e.Hooks, &specs.Hook{HookName: pick("phase", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"), Path: pick("program", "/x", "/y")})
	}
	for range count("gids") {
		e.AdditionalGIDs = append(e.AdditionalGIDs, uint32(rapid.IntRange(0, 2).Draw(t, label+"gid")))
	}
	return e
}

func drawSpec(t *rapid.T) *oci.Spec {
	spec := &oci.Spec{}
	if rapid.Bool().Draw(t, "process") {
		spec.Process = &oci.Process{Env: []string{"HOME=/", "A=0", "PATH=/bin"}}
	}
	for _, dest := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"/proc", "/a", "/a/b", "/a/b/c/d", "/ab/c", "/d/e", "/d/e/f"}), 0, 5, rapid.ID).Draw(t, "mounts") {
		spec.Mounts = append(spec.Mounts, oci.Mount{Destination: dest, Source: "own", Type: "bind"})
	}
	return spec
}

// ordered says whether every mount of a list comes after those above it.
func ordered(mounts []oci.Mount) bool {
	for i, m := range mounts {
		for _, later := range mounts[i+1:] {
			if strings.HasPrefix(m.Destination, path.Clean(later.Destination)+"/") {
				return false
			}
		}
	}
	return true
}

// TestApplyAsUpstream: environment, hooks, and what is mounted where from what are those
// of the CDI library, which differs in that it makes nodes and we bind them, and in that
// it takes /a and /a/ for two places.
func TestApplyAsUpstream(t *testing.T) {
	needFuse(t)
	rapid.Check(t, func(t *rapid.T) {
		first, second := drawEdits(t, "1."), drawEdits(t, "2.")
		ours := drawSpec(t)
		var theirs oci.Spec
		text, _ := json.Marshal(ours)
		_ = json.Unmarshal(text, &theirs)
		sane := ordered(ours.Mounts)

		all := (&upstream.ContainerEdits{}).Append(&upstream.ContainerEdits{ContainerEdits: first}).Append(&upstream.ContainerEdits{ContainerEdits: second})
		merged := cdi.Merge(first, second)
		// The library fills in the edits it is given, so it comes second.
		report, err := cdi.Apply(ours, merged)
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Apply(&theirs); err != nil {
			t.Fatal(err)
		}
		if got, want := environment(ours), environment(&theirs); got != want {
			t.Fatalf("environment\n%s\n%s", got, want)
		}
		if got, want := mounted(ours), mounted(&theirs); got != want {
			t.Fatalf("mounts\n%s\n%s", got, want)
		}
		if got, want := hooks(ours), hooks(&theirs); got != want {
			t.Fatalf("hooks\n%s\n%s", got, want)
		}
		if sane && !ordered(ours.Mounts) {
			t.Fatalf("a mount hides another: %v", ours.Mounts)
		}
		for _, m := range report.Mountpoints {
			if !slices.ContainsFunc(ours.Mounts, func(o oci.Mount) bool { return o.Destination == m.Path }) {
				t.Fatalf("mountpoint %s without a mount", m.Path)
			}
		}
		checkRules(t, ours, merged)
		// A second time changes nothing.
		once, _ := json.Marshal(ours.Mounts)
		if _, err := cdi.Apply(ours, merged); err != nil {
			t.Fatal(err)
		}
		if twice, _ := json.Marshal(ours.Mounts); mounted(ours) != mounted(&theirs) || len(twice) != len(once) {
			t.Fatalf("a second time: %s\n%s", once, twice)
		}
	})
}

// checkRules: the device cgroup's list has what the nodes ask for and nothing else.
func checkRules(t *rapid.T, spec *oci.Spec, e *specs.ContainerEdits) {
	want := map[string]bool{}
	numbers := map[string]string{"/dev/zero": "1:5", "/dev/full": "1:7", "/dev/fuse": "10:229", "/dev/urandom": "1:9"}
	for _, d := range e.DeviceNodes {
		if d.Permissions != "none" {
			access := d.Permissions
			if access == "" {
				access = "rwm"
			}
			want[numbers[d.HostPath]+access] = true
		}
	}
	got := 0
	if spec.Linux != nil && spec.Linux.Resources != nil {
		for _, r := range spec.Linux.Resources.Devices {
			text, _ := json.Marshal([]int64{*r.Major, *r.Minor})
			key := strings.ReplaceAll(strings.Trim(string(text), "[]"), ",", ":") + r.Access
			if !r.Allow || r.Type != "c" || !want[key] {
				t.Fatalf("rule %s, wanted %v", key, want)
			}
			got++
		}
	}
	if got != len(want) {
		t.Fatalf("%d rules for %v", got, want)
	}
}

func environment(s *oci.Spec) string {
	if s.Process == nil {
		return ""
	}
	return strings.Join(s.Process.Env, "\n")
}

// mounted lists what can be seen where: nodes and mounts.
func mounted(s *oci.Spec) string {
	var list []string
	nodes := map[string]bool{}
	for _, m := range s.Mounts {
		if m.Options != nil && m.Options[0] == "bind" { // a node, as we have them
			nodes[m.Destination] = true
			continue
		}
		list = append(list, path.Clean(m.Destination)+" from "+m.Source+" "+strings.Join(m.Options, ","))
	}
	if s.Linux != nil {
		for _, d := range s.Linux.Devices {
			nodes[d.Path] = true
		}
	}
	for n := range nodes {
		list = append(list, "node "+n)
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// hooks lists the hooks, each once.
func hooks(s *oci.Spec) string {
	if s.Hooks == nil {
		return ""
	}
	var list []string
	for name, hooks := range map[string][]oci.Hook{
		"createRuntime": s.Hooks.CreateRuntime, "createContainer": s.Hooks.CreateContainer, "startContainer": s.Hooks.StartContainer,
		"poststart": s.Hooks.Poststart, "poststop": s.Hooks.Poststop,
	} {
		for _, h := range hooks {
			list = append(list, name+" "+h.Path)
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "\n")
}
