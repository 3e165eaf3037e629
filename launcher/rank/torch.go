package rank

import (
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/hooks/pytorch"
	"github.com/gangway-hpc/gangway/internal/job"
)

// torchrunSwitch is the variable that keeps PET_* from being set: off, no, false or 0.
const torchrunSwitch = "GANGWAY_TORCHRUN"

// torch are the variables by which ranks find each other, and the GPUs that they see. The
// script of a job has none but the latter: what it starts would inherit them.
func (e *Env) torch(s *set, local int) {
	if e.GPUs != nil {
		var gpus []string
		for _, at := range e.share(local) {
			gpus = append(gpus, e.GPUs[at])
		}
		list := strings.Join(gpus, ",")
		names := visible()
		if strings.Trim(list, "0123456789,") != "" {
			names = names[:1]
		}
		for _, name := range names {
			s.add(name, list)
		}
	}
	if e.isBatch() {
		return
	}
	r := pytorch.Rank{
		Rank: e.node.Ranks[local], Local: local, World: e.Spec.Tasks, LocalWorld: len(e.node.Ranks),
		Node: e.Node, Nodes: len(e.Spec.Nodes), MasterAddr: e.MasterAddr, MasterPort: e.MasterPort,
	}
	run, ok := pytorch.ParseTorchrun(texts(e.Spec.Program.Args))
	if !ok || e.off() {
		s.list = append(s.list, r.Environ(e.has)...)
		return
	}
	s.list = append(s.list, r.Master(e.has)...)
	s.list = append(s.list, run.Environ(pytorch.Place{
		Nodes: r.Nodes, Node: e.Node, Tasks: r.LocalWorld, Local: local, MasterAddr: e.MasterAddr, MasterPort: e.MasterPort,
		ID: rendezvous(e.Spec),
	}, e.has)...)
}

// rendezvous is a name that no other step, and no other try of this one, has.
func rendezvous(s *job.StepSpec) string {
	return fmt.Sprintf("%s.%d.%d.%s.%d", s.Cluster, s.Key.Job, s.Key.Attempt, s.Key.Step, s.Key.Try)
}

// has says whether the caller has set a variable to something.
func (e *Env) has(name string) bool { return e.user[name] != "" }

// off says whether the caller does without PET_*.
func (e *Env) off() bool {
	switch strings.ToLower(e.user[torchrunSwitch]) {
	case "0", "no", "off", "false":
		return true
	}
	return false
}

func texts(args [][]byte) []string {
	all := make([]string, len(args))
	for i, a := range args {
		all[i] = string(a)
	}
	return all
}

// OneTorchrun says whether a step whose nodes have that many tasks and GPUs means one
// torchrun on each node, because each of those it asks for starts as many workers as there
// are GPUs; the note tells its user. The caller makes the step with one task a node.
func OneTorchrun(p *job.Program, tasks, gpus int) (note string, one bool) {
	run, ok := pytorch.ParseTorchrun(texts(p.Args))
	for _, v := range p.Environ {
		if name, value, _ := strings.Cut(string(v), "="); name == torchrunSwitch {
			ok = ok && !(&Env{user: map[string]string{name: value}}).off()
		}
	}
	if !ok || !run.OnePerNode(tasks, gpus) {
		return "", false
	}
	return fmt.Sprintf(
		"one torchrun is started on each node instead of %d: each starts %s workers, and a node has %d GPUs (%s=off starts all)",
		tasks, run.NprocPerNode, gpus, torchrunSwitch), true
}
