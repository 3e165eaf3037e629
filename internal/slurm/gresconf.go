package slurm

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// device is one device of a node, as gres.conf has it.
type device struct {
	kind   string
	socket int
	links  []int
}

// gresLine is one line of gres.conf.
type gresLine struct {
	name, kind string
	files      []string
	count      int64
	cores      []int
	links      []int
}

// gresConf reads gres.conf beside slurm.conf: it adds to the nodes which types they have,
// and where and how well linked each device is. How many there are says slurm.conf.
func (r *reader) gresConf(name string) error {
	devices := map[string][]device{} // by node and name
	listed := map[string]*listing{}
	key := func(node, name string) string { return node + "\x00" + name }
	err := r.eachLine(path.Join(path.Dir(name), "gres.conf"), true, func(l line) error {
		g, nodes, err := r.gresLine(l)
		if err != nil || g.name == "" {
			return err
		}
		var unknown, unused []string
		for _, node := range nodes {
			i, ok := r.named[node]
			if !ok {
				unknown = append(unknown, node)
				continue
			}
			n := r.cluster.Nodes[i]
			if !slices.ContainsFunc(n.GRES, func(g2 job.GRES) bool { return g2.Name == g.name }) {
				if _, explicit := l.get("NodeName"); explicit {
					unused = append(unused, node)
				}
				continue
			}
			if listed[key(node, g.name)] == nil {
				listed[key(node, g.name)] = &listing{}
			}
			listed[key(node, g.name)].add(l, g)
			for range min(g.count, 64) {
				devices[key(node, g.name)] = append(devices[key(node, g.name)], device{g.kind, g.socket(n), g.links})
			}
		}
		r.sayUnused(l, g.name, unknown, unused)
		return nil
	})
	if err != nil {
		return err
	}
	var fewer shortages
	for i := range r.cluster.Nodes {
		n := &r.cluster.Nodes[i]
		var all []job.GRES
		for _, g := range n.GRES {
			if at := listed[key(n.Name, g.Name)]; at != nil && at.of(g.Type) < g.Count {
				fewer.add(n.Name, g, at)
			}
			all = append(all, withDevices(g, devices[key(n.Name, g.Name)])...)
		}
		n.GRES = all
	}
	fewer.warn(r)
	return nil
}

// sayUnused says for which nodes a line is of no use.
func (r *reader) sayUnused(l line, name string, unknown, unused []string) {
	if len(unknown) > 0 {
		r.warn(l, pair{"NodeName", Fold(unknown)}, "add a NodeName line to slurm.conf, or leave it out", "no line of slurm.conf defines it: not used")
	}
	if len(unused) > 0 {
		r.cannot(l, pair{"Name", name}, "write Gres="+name+":COUNT into the NodeName line", "%s has no Gres=%s in slurm.conf: what this line describes is not used", Fold(unused), name)
	}
}

// listing is how many devices of a name gres.conf has for a node.
type listing struct {
	last  line // the last one that is about them
	count map[string]int64
}

func (c *listing) add(l line, g gresLine) {
	if c.count == nil {
		c.count = map[string]int64{}
	}
	c.last = l
	c.count[strings.ToLower(g.kind)] += min(g.count, 1<<53) // no sum of them is too large
}

// of is how many may be of a type: any where none is asked for, else also those of which
// the line says none.
func (c *listing) of(kind string) int64 {
	if kind != "" {
		return c.count[strings.ToLower(kind)] + c.count[""]
	}
	total := int64(0)
	for _, n := range c.count {
		total += n
	}
	return total
}

// shortage is of nodes of which slurm.conf says more than gres.conf.
type shortage struct {
	at         line
	resource   string
	have, want int64
	nodes      []string
}

// shortages are together what differs in nothing but the nodes' names.
type shortages []shortage

func (s *shortages) add(node string, g job.GRES, at *listing) {
	one := shortage{at.last, strings.TrimSuffix(g.Name+":"+g.Type, ":"), at.of(g.Type), g.Count, []string{node}}
	i := slices.IndexFunc(*s, func(o shortage) bool {
		return o.at.number == one.at.number && o.resource == one.resource && o.have == one.have && o.want == one.want
	})
	if i < 0 {
		*s = append(*s, one)
		return
	}
	(*s)[i].nodes = append((*s)[i].nodes, node)
}

// warn says so: Slurm drains such nodes.
func (s shortages) warn(r *reader) {
	for _, one := range s {
		r.cannot(one.at, pair{}, "have as many in both",
			"%d %s on %s here, and %d in slurm.conf, which counts; Slurm drains such nodes: gres/%s count reported lower than configured",
			one.have, one.resource, Fold(one.nodes), one.want, one.resource)
	}
}

// gresLine reads one line, and for which nodes it is.
func (r *reader) gresLine(l line) (g gresLine, nodes []string, err error) {
	for _, p := range l.pairs {
		switch strings.ToLower(p.key) {
		case "nodename":
			nodes, err = hosts(l, p)
		case "name":
			g.name = strings.ToLower(p.value)
		case "type":
			g.kind = p.value
		case "file", "multiplefiles":
			if g.files, err = Expand(p.value); err != nil {
				err = l.errorf("%s: %w", p.key, err)
			}
		case "count":
			if g.count, err = parseCount(p.value); err != nil {
				err = l.bad(p, "a whole number, with K, M or G if it is large")
			}
		case "cores", "cpus":
			var ok bool
			if g.cores, ok = parseIndexes(p.value, 1<<16); !ok {
				err = l.bad(p, "numbers of cores, as 0-31 or 0,2,4")
			}
		case "links":
			g.links, err = links(l, p)
		case "autodetect":
			if _, err = oneOf(l, p, "", "nvml", "nvidia", "rsmi", "oneapi", "nrt", "full", "off"); err == nil {
				r.follow(l, p, gresConf)
			}
		default:
			r.follow(l, p, gresConf)
		}
		if err != nil {
			return g, nil, err
		}
	}
	_, auto := l.get("AutoDetect")
	switch {
	case g.name == "" && auto:
		return g, nil, nil
	case g.name == "":
		return g, nil, l.errorf("want Name= on the line, as Name=gpu")
	case g.count > 0 && len(g.files) > 0 && g.count != int64(len(g.files)) && len(g.files) > 1:
		value, _ := l.get("Count")
		return g, nil, l.bad(pair{"Count", value}, "as many as File= has: "+strconv.Itoa(len(g.files)))
	}
	if g.count == 0 {
		g.count = max(int64(len(g.files)), 1)
	}
	if nodes == nil {
		for _, n := range r.cluster.Nodes {
			nodes = append(nodes, n.Name)
		}
	}
	return g, nodes, nil
}

// links reads "-1,16,16,16": how well a device is linked to each, -1 being itself.
func links(l line, p pair) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(p.value, ",") {
		n, err := strconv.ParseInt(word, 10, 32)
		if err != nil || n < -1 {
			return nil, l.bad(p, "numbers, one for each device and -1 for itself, as -1,16,16,16")
		}
		all = append(all, int(n))
	}
	return all, nil
}

// socket is the one that all cores of the line are in, -1 if there is none such.
func (g gresLine) socket(n job.Node) int {
	socket := -1
	for i, core := range g.cores {
		at := core / max(n.CoresPerSocket, 1)
		if at >= n.Sockets || i > 0 && at != socket {
			return -1
		}
		socket = at
	}
	return socket
}

// withDevices puts what gres.conf knows of a node's devices into what slurm.conf says.
func withDevices(g job.GRES, devices []device) []job.GRES {
	if g.Type != "" {
		devices = slices.DeleteFunc(slices.Clone(devices), func(d device) bool { return d.kind != "" && !strings.EqualFold(d.kind, g.Type) })
	}
	if len(devices) == 0 || int64(len(devices)) != g.Count {
		return []job.GRES{g}
	}
	var all []job.GRES
	if g.Type == "" && slices.ContainsFunc(devices, func(d device) bool { return d.kind != devices[0].kind }) {
		for rest := devices; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].kind == rest[0].kind {
				n++
			}
			all = append(all, job.GRES{Name: g.Name, Type: rest[0].kind, Count: int64(n)})
			rest = rest[n:]
		}
		return all
	}
	if g.Type == "" {
		g.Type = devices[0].kind
	}
	if slices.ContainsFunc(devices, func(d device) bool { return d.socket >= 0 }) {
		g.Sockets = nil
		for _, d := range devices {
			g.Sockets = append(g.Sockets, d.socket)
		}
	}
	if !slices.ContainsFunc(devices, func(d device) bool { return len(d.links) != len(devices) }) {
		for _, d := range devices {
			g.Links = append(g.Links, d.links)
		}
	}
	return []job.GRES{g}
}
