package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The leaves of a group, and the directory at the top of all of ours.
const (
	top       = "gangway"
	ranksLeaf = "ranks"
	supLeaf   = "sup"
)

// Rung is how a group came to be, from the best to the worst.
type Rung int

// The rungs, see the package comment.
const (
	Root      Rung = iota + 1 // made by root, at the top or inside the caller's own group
	Systemd                   // a scope of the user's systemd
	Delegated                 // inside the caller's own group, which is the caller's to change
	None                      // no group: affinity and rlimits
)

// String is the rung as people read it.
func (r Rung) String() string {
	names := []string{"unknown", "root", "systemd user scope", "delegated", "none (advisory)"}
	if r < 0 || int(r) >= len(names) {
		r = 0
	}
	return names[r]
}

// Options say which group and where.
type Options struct {
	Name     string // of the group among those of its instance: "run-17"; letters, digits, '-' and '_'
	Instance string // sets several installations on one machine apart; "" is "default"
	Proc     string // where the process file system is; "" is /proc
	UID      int    // the user that the caller is; root's is 0
	// Runtime is the user's runtime directory, as in XDG_RUNTIME_DIR, in which
	// systemd's user manager listens. "" leaves this rung out.
	Runtime string
}

// fill fills in what "" stands for.
func (o *Options) fill() {
	if o.Instance == "" {
		o.Instance = "default"
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
}

// Missing is a limit that was asked for and is not enforced.
type Missing struct {
	What string // "memory"
	Why  string // what was found
	Hint string // what helps; may be ""
}

// String is one line for people.
func (m Missing) String() string {
	verb := " is"
	if strings.HasSuffix(m.What, "s") { // "processes"
		verb = " are"
	}
	s := m.What + verb + " not limited: " + m.Why
	if m.Hint != "" {
		s += " (" + m.Hint + ")"
	}
	return s
}

// Group is a control group for one container, with a leaf for its supervisor and one for
// its ranks.
type Group struct {
	rung    Rung
	proc    string
	opts    Options
	trees   []*tree // version 2 first
	name    string  // gangway/default/run-17, below each tree's base
	scope   string  // the unit on the rung Systemd
	refused []Refusal
	closed  []closed // hierarchies that are there and cannot be changed

	mu       sync.Mutex // guards what follows
	missing  []Missing
	affinity Set    // in place of cpuset
	nproc    uint64 // in place of pids; 0 is none
	devices  *os.File
}

// closed is a hierarchy that cannot be changed.
type closed struct {
	tree
	err error
}

// tree is the group in one hierarchy.
type tree struct {
	*hierarchy
	base    string   // an existing directory that the group is made below
	dir     string   // the group's
	lock    *os.File // dir, locked
	enabled []string // controllers of version 2 that we switched on, in the directories down to dir
	on      []string // controllers of version 2 that the leaves have
	made    bool     // dir and the leaves exist
	offered []string // controllers of version 2 that base has, once they were read
}

// leaf is the directory of a leaf. Version 1 lets processes be anywhere, so there only
// what has limits of the ranks' own has a directory for them.
func (t *tree) leaf(name string) string {
	if t.version == 1 && (name == supLeaf || !t.split()) {
		return t.dir
	}
	return filepath.Join(t.dir, name)
}

// overAll says whether t is made at the very root, where processes do not matter.
func (t *tree) overAll() bool { return t.real && t.base == t.mount }

// split says whether the ranks have limits of their own in t.
func (t *tree) split() bool {
	return t.version == 2 || slices.ContainsFunc(t.controllers, func(c string) bool {
		return slices.Contains([]string{"memory", "pids", "blkio", "devices", "hugetlb", "freezer"}, c)
	})
}

// Open makes the group on the best rung that there is. On the rungs Systemd and
// Delegated the calling process is moved into the leaf of the supervisor, because it could
// not give out its own group otherwise. An error is a name that is not valid or in use, or a
// /proc that cannot be read.
func Open(ctx context.Context, opts Options) (*Group, error) {
	opts.fill()
	for _, name := range []string{opts.Name, opts.Instance} {
		if !validName(name) {
			return nil, fmt.Errorf("open cgroup: %q is no name: letters, digits, '-' and '_', at most 64", name)
		}
	}
	found, err := hierarchies(opts.Proc)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	g := &Group{proc: opts.Proc, opts: opts, name: filepath.Join(top, opts.Instance, opts.Name)}
	for _, rung := range []func(context.Context, []hierarchy) error{g.asRoot, g.asScope, g.asDelegated} {
		g.trees = nil
		err := rung(ctx, found)
		if err == nil {
			return g, nil
		}
		if errors.Is(err, os.ErrExist) || ctx.Err() != nil {
			return nil, err
		}
		why, ok := errors.AsType[Refusal](err)
		if !ok {
			why = Refusal{Rung: g.rung, Why: err.Error()}
		}
		if why.Why != "" {
			g.refused = append(g.refused, why)
		}
	}
	g.rung, g.trees = None, nil
	return g, nil
}

// Refusal is why a rung is not to be had.
type Refusal struct {
	Rung Rung
	Why  string // what was found
	Hint string // what helps; may be ""
}

// Error is one line for people.
func (e Refusal) Error() string {
	s := e.Rung.String() + ": " + e.Why
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func validName(name string) bool {
	return name != "" && len(name) <= 64 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// Rung is the one in use.
func (g *Group) Rung() Rung { return g.rung }

// Version is 2 or 1 for the hierarchy that limits memory, or would; 0 without any.
func (g *Group) Version() int {
	for _, version := range []int{2, 1} {
		if slices.ContainsFunc(g.trees, func(t *tree) bool { return t.version == version && t.offers("memory") }) {
			return version
		}
	}
	if len(g.trees) > 0 {
		return g.trees[0].version
	}
	return 0
}

// Refused tells of each better rung why it is not to be had.
func (g *Group) Refused() []Refusal { return slices.Clone(g.refused) }

// Missing lists the limits that were asked for and are not enforced.
func (g *Group) Missing() []Missing {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.missing)
}

// miss takes a note for Missing; the caller holds mu.
func (g *Group) miss(what, why, hint string) {
	m := Missing{what, why, hint}
	if !slices.Contains(g.missing, m) {
		g.missing = append(g.missing, m)
	}
}

// Dir is the group's directory in the hierarchy of version 2, or else in the first of
// version 1; "" on the last rung.
func (g *Group) Dir() string {
	if len(g.trees) == 0 {
		return ""
	}
	return g.trees[0].dir
}

// offers says whether t can have controller.
func (t *tree) offers(controller string) bool {
	if t.version == 1 {
		return slices.Contains(t.controllers, controller)
	}
	if t.offered == nil {
		text, _ := read(t.base, "cgroup.controllers")
		t.offered = append([]string{}, strings.Fields(text)...)
	}
	return slices.Contains(t.offered, controller)
}

// tree returns the group in the hierarchy of that version which has controller, made and
// switched on, or nil; why not is known to why.
func (g *Group) tree(controller string, version int) *tree {
	for _, t := range g.trees {
		if t.version == version && t.offers(controller) && g.use(t, controller) == nil {
			return t
		}
	}
	return nil
}

// why says why tree returned nil for both versions.
func (g *Group) why(controller string) string {
	for _, t := range g.trees {
		if t.offers(controllerOn(controller, t.version)) {
			if err := g.use(t, controller); errors.Is(err, unix.EBUSY) {
				return "the group " + t.base + " has processes besides this one"
			} else if err != nil {
				return err.Error()
			}
		}
	}
	if g.rung == Systemd || g.rung == Delegated {
		return "the controller " + controller + " is not delegated to this user"
	}
	for _, c := range g.closed {
		if c.offers(controllerOn(controller, c.version)) {
			return c.err.Error()
		}
	}
	return "no controller " + controller + " is mounted, or this kernel has none"
}

// use makes t's directories and switches controller on in them.
func (g *Group) use(t *tree, controller string) error {
	if err := g.make(t); err != nil {
		return err
	}
	if t.version == 1 || controller == "" {
		return nil
	}
	dirs := []string{t.dir}
	for dir := t.dir; dir != t.base; {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	for _, dir := range slices.Backward(dirs) {
		on, err := read(dir, "cgroup.subtree_control")
		if err != nil {
			return err
		}
		if slices.Contains(strings.Fields(on), controller) {
			continue
		}
		// With processes some controllers could be had, and would make all groups below
		// threaded ones, which no process can be placed in.
		if pids, _ := read(dir, "cgroup.procs"); pids != "" && !(dir == t.base && t.overAll()) {
			return fmt.Errorf("switch %s on in %s: %w", controller, dir, unix.EBUSY)
		}
		if err := write(dir, "cgroup.subtree_control", "+"+controller); err != nil {
			return err
		}
		if dir == t.base && !t.overAll() {
			t.enabled = append(t.enabled, controller)
		}
	}
	if !slices.Contains(t.on, controller) {
		t.on = append(t.on, controller)
	}
	return nil
}

// make makes the directories of t, locked against Sweep. Only a name that is in use is
// os.ErrExist.
func (g *Group) make(t *tree) error {
	for try := 0; !t.made; try++ {
		err := t.mkdirs()
		if try < 100 && (errors.Is(err, os.ErrNotExist) || try > 0 && errors.Is(err, os.ErrExist)) {
			time.Sleep(time.Millisecond) // Sweep is at it
			continue
		}
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return nil
}

func (t *tree) mkdirs() error {
	if t.dir != t.base {
		err := t.mkdir(t.dir)
		if errors.Is(err, os.ErrNotExist) { // the first group of all, or of its instance
			err = errors.Join(t.mkparents(filepath.Dir(t.dir)), t.mkdir(t.dir))
		}
		if err != nil {
			return err
		}
	}
	lock, err := os.Open(t.dir)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return os.ErrNotExist // Sweep has it, and will remove it
	}
	for _, leaf := range []string{supLeaf, ranksLeaf} {
		dir := t.leaf(leaf)
		if dir == t.dir {
			continue
		}
		if err := t.mkdir(dir); err != nil && !errors.Is(err, os.ErrExist) {
			_ = lock.Close()
			return err
		}
	}
	t.lock, t.made = lock, true
	return nil
}

// mkparents makes dir and what is missing above it, below the base.
func (t *tree) mkparents(dir string) error {
	if dir == t.base {
		return nil
	}
	err := t.mkdir(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = errors.Join(t.mkparents(filepath.Dir(dir)), t.mkdir(dir))
	}
	if errors.Is(err, os.ErrExist) {
		return nil // somebody else's group is the first
	}
	return err
}

func (t *tree) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	t.inherit(filepath.Dir(dir), dir)
	return nil
}

// inherit fills in what version 1 leaves empty in a new group. What fails here fails later,
// when it matters.
func (t *tree) inherit(parent, dir string) {
	if slices.Contains(t.controllers, "cpuset") {
		for _, name := range []string{"cpuset.mems", "cpuset.cpus"} {
			if have, _ := read(dir, name); have != "" {
				continue
			}
			if all, err := read(parent, name); err == nil {
				_ = write(dir, name, all)
			}
		}
	}
	if slices.Contains(t.controllers, "memory") && parent == t.base {
		_ = write(dir, "memory.use_hierarchy", "1") // those below inherit it
	}
}
