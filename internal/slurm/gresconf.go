package slurm

import (
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

const gresKeys = "NodeName Name Type File Count Cores CPUs Links Flags MultipleFiles AutoDetect"

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
	key := func(node, name string) string { return node + "\x00" + name }
	err := r.eachLine(path.Join(path.Dir(name), "gres.conf"), true, func(l line) error {
		g, nodes, err := r.gresLine(l)
		if err != nil || g.name == "" {
			return err
		}
		for _, node := range nodes {
			i, ok := r.named[node]
			if !ok {
				r.warn(l, "no line of slurm.conf defines node %s", node)
				continue
			}
			n := r.cluster.Nodes[i]
			if !slices.ContainsFunc(n.GRES, func(g2 job.GRES) bool { return g2.Name == g.name }) {
				if _, explicit := l.get("NodeName"); explicit {
					r.warn(l, "node %s has %s here, and no Gres=%s in slurm.conf: not used", node, g.name, g.name)
				}
				continue
			}
			for range min(g.count, 64) {
				devices[key(node, g.name)] = append(devices[key(node, g.name)], device{g.kind, g.socket(n), g.links})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range r.cluster.Nodes {
		n := &r.cluster.Nodes[i]
		var all []job.GRES
		for _, g := range n.GRES {
			all = append(all, withDevices(g, devices[key(n.Name, g.Name)])...)
		}
		n.GRES = all
	}
	return nil
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
			if g.count, err = parseCount(p.value); err != nil || g.count > math.MaxInt32 {
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
			_, err = oneOf(l, p, "", "nvml", "nvidia", "rsmi", "oneapi", "nrt", "full", "off")
			r.ignore(l, p)
		default:
			if !isOneOf(p.key, gresKeys) {
				return g, nil, l.errorf("%s: unknown in gres.conf; valid are %s", p.key, strings.ReplaceAll(gresKeys, " ", ", "))
			}
			r.ignore(l, p)
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
