package cdi

import (
	"path"
	"slices"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Merge returns what all of the edits together ask for, in their order: a copy, so that
// it may be changed. Of what is there twice the first place and the last wording count:
// of variables by name, of nodes and mounts by path in the container. The same hook, and
// the same group, is taken once. A nil is no edits; entries of edits are not nil.
func Merge(all ...*specs.ContainerEdits) *specs.ContainerEdits {
	sum := &specs.ContainerEdits{}
	env := &set[string]{list: &sum.Env}
	nodes := &set[*specs.DeviceNode]{list: &sum.DeviceNodes}
	mounts := &set[*specs.Mount]{list: &sum.Mounts}
	net := &set[*specs.LinuxNetDevice]{list: &sum.NetDevices}
	for _, e := range all {
		if e == nil {
			continue
		}
		for _, v := range e.Env {
			env.put(variable(v), v)
		}
		for _, d := range e.DeviceNodes {
			nodes.put(path.Clean(d.Path), copyOf(d))
		}
		for _, m := range e.Mounts {
			c := copyOf(m)
			c.Options = slices.Clone(m.Options)
			mounts.put(path.Clean(m.ContainerPath), c)
		}
		for _, n := range e.NetDevices {
			net.put(n.HostInterfaceName, copyOf(n))
		}
		for _, h := range e.Hooks {
			if !slices.ContainsFunc(sum.Hooks, func(o *specs.Hook) bool { return sameHook(o, h) }) {
				sum.Hooks = append(sum.Hooks, copyOf(h))
			}
		}
		for _, gid := range e.AdditionalGIDs {
			if gid != 0 && !slices.Contains(sum.AdditionalGIDs, gid) {
				sum.AdditionalGIDs = append(sum.AdditionalGIDs, gid)
			}
		}
		if e.IntelRdt != nil {
			sum.IntelRdt = copyOf(e.IntelRdt)
		}
	}
	return sum
}

// set is a list in which a key is once.
type set[T any] struct {
	list *[]T
	at   map[string]int
}

// put replaces what has the key, or else appends v.
func (s *set[T]) put(key string, v T) {
	if i, ok := s.at[key]; ok {
		(*s.list)[i] = v
		return
	}
	if s.at == nil {
		s.at = map[string]int{}
	}
	s.at[key] = len(*s.list)
	*s.list = append(*s.list, v)
}

func copyOf[T any](p *T) *T {
	c := *p
	return &c
}

func sameHook(a, b *specs.Hook) bool {
	return a.HookName == b.HookName && a.Path == b.Path && slices.Equal(a.Args, b.Args) && slices.Equal(a.Env, b.Env) &&
		(a.Timeout == nil) == (b.Timeout == nil) && (a.Timeout == nil || *a.Timeout == *b.Timeout)
}
