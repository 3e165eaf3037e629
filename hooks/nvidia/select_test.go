package nvidia_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// short writes a choice as "COUNT of NAMES".
func short(c nvidia.Choice) string {
	var names []string
	for _, v := range c.Candidates {
		names = append(names, v.Short)
	}
	return fmt.Sprintf("%d of %s", c.Count, strings.Join(names, ","))
}

func TestSelect(t *testing.T) {
	whole := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 4}))
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, MIG: 2})
	split := discover(t, tree, func(o *nvidia.Options) {
		o.MIGs = []nvidia.MIGName{{UUID: "MIG-1111", GPU: tree.GPUs[0].UUID, GI: 1, CI: 0}}
	})
	uuid := func(d *nvidia.Driver, i int) string { return d.GPUs[i].UUID }
	type request = nvidia.Request
	for _, c := range []struct {
		d    *nvidia.Driver
		r    request
		want string // "COUNT of NAMES", or "!" and what the error says
	}{
		{whole, request{}, "0 of "},
		{nil, request{}, "0 of "},
		{nil, request{GPUs: "none"}, "0 of "},
		{nil, request{User: "void"}, "0 of "},
		{nil, request{GPUs: "1"}, "!no NVIDIA driver on this machine"},
		{nil, request{User: "all"}, "!no NVIDIA driver on this machine"},
		{whole, request{GPUs: "0"}, "0 of "},
		{whole, request{GPUs: "2"}, "2 of 0,1,2,3"},
		{whole, request{GPUs: "4"}, "4 of 0,1,2,3"},
		{whole, request{GPUs: "5"}, "!there are 4"},
		{whole, request{GPUs: "-1"}, "!not negative"},
		{whole, request{GPUs: "all"}, "4 of 0,1,2,3"},
		{whole, request{GPUs: "device=1"}, "1 of 1"},
		{whole, request{GPUs: "3,1"}, "2 of 1,3"},
		{whole, request{GPUs: "1,1"}, "1 of 1"},
		{whole, request{GPUs: uuid(whole, 2)}, "1 of 2"},
		{whole, request{GPUs: uuid(whole, 2) + ", " + uuid(whole, 0)}, "2 of 0,2"},
		{whole, request{GPUs: uuid(whole, 2)[:12]}, "!no such GPU"},
		{whole, request{GPUs: "GPU-what"}, "!0 = " + uuid(whole, 0) + " (NVIDIA H100 80GB HBM3)"},
		{whole, request{GPUs: "device="}, "!names no GPU"},
		{whole, request{GPUs: "12Q"}, "!no such GPU"},
		{whole, request{GPUs: "7,8"}, "!no such GPU"},
		{whole, request{GPUs: "MIG-1"}, "!no such GPU"},
		// The user's variable alone, and within the flag.
		{whole, request{User: "2"}, "1 of 2"},
		{whole, request{User: "all"}, "4 of 0,1,2,3"},
		{whole, request{User: "none"}, "0 of "},
		{whole, request{User: "9"}, "!no such GPU"},
		{whole, request{GPUs: "1", User: "2,3"}, "1 of 2,3"},
		{whole, request{GPUs: "3", User: "2,3"}, "!there are 2 within NVIDIA_VISIBLE_DEVICES=2,3"},
		{whole, request{GPUs: "device=0", User: "2,3"}, "!not among those"},
		{whole, request{GPUs: "1", User: "none"}, "!there are 0"},
		{whole, request{GPUs: "all", User: "none"}, "!there is none"},
		{whole, request{GPUs: "2", User: "void"}, "2 of 0,1,2,3"},
		// An allocation bounds everything.
		{whole, request{Allocation: []string{uuid(whole, 1), "3"}}, "2 of 1,3"},
		{whole, request{Allocation: []string{}}, "0 of "},
		{whole, request{Allocation: []string{}, User: "all"}, "0 of "},
		{whole, request{GPUs: "1", Allocation: []string{}}, "!there are 0"},
		{whole, request{GPUs: "1", Allocation: []string{"3"}}, "1 of 3"},
		{whole, request{GPUs: "0,3", Allocation: []string{"3"}}, "!not among those"},
		{whole, request{User: "3", Allocation: []string{"2", "3"}}, "1 of 3"},
		{whole, request{User: "1", Allocation: []string{"2", "3"}}, "!not among those"},
		{whole, request{Allocation: []string{"GPU-gone"}}, "!the allocation"},
		// Instances.
		{split, request{GPUs: "all"}, "4 of 0:1:0,0:2:0,1:1:0,1:2:0"},
		{split, request{GPUs: "3"}, "3 of 0:1:0,0:2:0,1:1:0,1:2:0"},
		{split, request{GPUs: "MIG-1111"}, "1 of 0:1:0"},
		{split, request{GPUs: "1:2:0"}, "1 of 1:2:0"},
		{split, request{GPUs: "MIG-" + uuid(split, 0) + "/2/0"}, "1 of 0:2:0"},
		{split, request{GPUs: "MIG-2222"}, "!NVML has not told"},
		{split, request{GPUs: "device=0"}, "!split into MIG instances"},
		{split, request{GPUs: uuid(split, 1)}, "!0:1:0 = MIG-1111 (MIG instance of"},
	} {
		got, err := nvidia.Select(c.d, c.r)
		if text, bad := strings.CutPrefix(c.want, "!"); bad {
			wantFault(t, err, nil, text)
			if code := fault.Code(err); code != fault.CodeFailed && code != fault.CodeUsage {
				t.Errorf("%+v: exit code %d", c.r, code)
			}
		} else if err != nil || short(got) != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.r, short(got), err, c.want)
		}
	}
	if _, err := nvidia.Select(nil, request{GPUs: "all"}); fault.Code(err) != fault.CodeFailed {
		t.Errorf("no driver: exit code %d", fault.Code(err))
	}
}

func TestHint(t *testing.T) {
	if nvidia.Hint("all") == "" || nvidia.Hint("") != "" || nvidia.Hint("void") != "" || nvidia.Hint("none") != "" {
		t.Error("the hint is not for images that expect GPUs")
	}
}

// TestSelectProperty: whatever is asked, nobody gets what is not allocated to him or
// what is outside his own bound, nothing twice, and a count is kept.
func TestSelectProperty(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 6}))
	rapid.Check(t, func(r *rapid.T) {
		some := func(label string) []string {
			var names []string
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, 6), 0, 4).Draw(r, label) {
				if i < 6 && rapid.Bool().Draw(r, "uuid") {
					names = append(names, d.GPUs[i].UUID)
				} else {
					names = append(names, strconv.Itoa(i))
				}
			}
			return names
		}
		q := nvidia.Request{
			GPUs: rapid.OneOf(rapid.SampledFrom([]string{"", "0", "1", "3", "7", "all", "none"}),
				rapid.Custom(func(r *rapid.T) string { return "device=" + strings.Join(some("flag"), ",") })).Draw(r, "gpus"),
			User: rapid.OneOf(rapid.SampledFrom([]string{"", "all", "none", "void"}),
				rapid.Custom(func(r *rapid.T) string { return strings.Join(some("user"), ",") })).Draw(r, "user"),
		}
		if rapid.Bool().Draw(r, "allocated") {
			q.Allocation = append([]string{}, some("allocation")...)
		}
		c, err := nvidia.Select(d, q)
		if err != nil {
			return
		}
		if c.Count > len(c.Candidates) {
			r.Fatalf("%+v: %s", q, short(c))
		}
		if n, err := strconv.Atoi(q.GPUs); err == nil && n != c.Count {
			r.Fatalf("%+v: %s", q, short(c))
		}
		in := func(v nvidia.Device, list string) bool {
			for name := range strings.SplitSeq(list, ",") {
				if name == v.Short || name == v.Name {
					return true
				}
			}
			return false
		}
		seen := map[string]bool{}
		for _, v := range c.Candidates {
			if seen[v.Name] {
				r.Fatalf("%+v: %s twice", q, v.Name)
			}
			seen[v.Name] = true
			if q.Allocation != nil && !in(v, strings.Join(q.Allocation, ",")) {
				r.Fatalf("%+v: %s is not allocated", q, v.Name)
			}
			if q.User != "" && q.User != "all" && q.User != "void" && !in(v, q.User) {
				r.Fatalf("%+v: %s is not visible", q, v.Name)
			}
			if list, ok := strings.CutPrefix(q.GPUs, "device="); ok && !in(v, list) {
				r.Fatalf("%+v: %s is not asked for", q, v.Name)
			}
		}
	})
}
