package slurm

import (
	"path"
	"strings"
)

// cgroupConf reads cgroup.conf beside slurm.conf. Nothing in it changes what is done here,
// so that what cannot be read in it refuses nothing.
func (r *reader) cgroupConf(name string) error {
	r.lenient = true
	defer func() { r.lenient = false }()
	file := path.Join(path.Dir(name), "cgroup.conf")
	if f, err := r.files.Open(file); err == nil {
		r.conf.cgroups = map[string]setAt{}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return r.eachLine(file, true, func(l line) error {
		for _, p := range l.pairs {
			key := strings.ToLower(p.key)
			if before, twice := r.conf.cgroups[key]; twice {
				r.warn(l, p, "leave one of the two out", "%s:%d has it too: the latter counts", before.at.file, before.at.number)
			}
			r.conf.cgroups[key] = setAt{l, p}
			r.follow(l, p, cgroupConf)
		}
		return nil
	})
}

// constrains says whether cgroup.conf has a job confined to something of its own.
func (c *global) constrains(what string) bool {
	at, ok := c.cgroups[strings.ToLower("Constrain"+what)]
	return ok && isOneOf(at.value, "yes 1 true up")
}
