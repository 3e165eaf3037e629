package pytorch

import (
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Torchrun is what a command line says to torchrun. An option that it does not give is
// empty.
type Torchrun struct {
	Nnodes, NprocPerNode string
	NodeRank             string
	Backend, Endpoint    string // --rdzv-backend, --rdzv-endpoint
	ID                   string // --rdzv-id
	MasterAddr           string
	MasterPort           string
	Standalone           bool
}

// ParseTorchrun finds torchrun in a command, also as a module of python's and in a text
// that a shell is to run, and reads its options as argparse does: with dashes or
// underscores, abbreviated, with a value behind "=" or in the next word. Its own end where
// the script begins. The word may mean something else: a script's argument, or the value of
// an option, as in --launcher torchrun.
func ParseTorchrun(args []string) (Torchrun, bool) {
	for i, arg := range args {
		if rest, ok := begins(args[i:]); ok && isCommand(args[:i]) {
			return options(rest), true
		}
		if strings.ContainsAny(arg, " \n\t") { // of sh -c
			words := strings.Fields(arg)
			start := 0 // of a command
			for j := range words {
				if rest, ok := begins(words[j:]); ok && isCommand(words[start:j]) {
					return options(rest), true
				}
				if strings.HasSuffix(words[j], ";") || words[j] == "&&" || words[j] == "||" || words[j] == "|" || words[j] == "then" || words[j] == "do" {
					start = j + 1
				}
			}
		}
	}
	return Torchrun{}, false
}

// isCommand says whether a word can be a program's name, given those before it: programs that
// start others, and their options.
func isCommand(before []string) bool {
	if n := len(before); n > 0 && strings.HasPrefix(before[n-1], "--") && !strings.Contains(before[n-1], "=") {
		return false
	}
	return !slices.ContainsFunc(before, func(word string) bool { return strings.HasSuffix(word, ".py") || word == "-m" })
}

// begins says whether words are torchrun and its arguments, which it returns.
func begins(words []string) ([]string, bool) {
	switch {
	case path.Base(words[0]) == "torchrun":
		return words[1:], true
	case words[0] == "-m" && len(words) > 1 && (words[1] == "torch.distributed.run" || words[1] == "torch.distributed.launch"):
		return words[2:], true
	}
	return nil, false
}

// options reads the words up to the first that is no option of torchrun's.
func options(words []string) Torchrun {
	var t Torchrun
	for len(words) > 0 && strings.HasPrefix(words[0], "-") && words[0] != "--" {
		name, value, attached := strings.Cut(words[0], "=")
		words = words[1:]
		full := fullName(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"))
		if slices.Contains(switches(), full) || strings.HasPrefix(name, "-m") && !strings.HasPrefix(name, "--") {
			t.Standalone = t.Standalone || full == "standalone"
			continue
		}
		if !attached && len(words) > 0 {
			value, words = words[0], words[1:]
		}
		if to := t.option(full); to != nil {
			*to = strings.Trim(value, `"'`)
		}
	}
	return t
}

// switches are torchrun's options that have no value.
func switches() []string {
	return []string{"standalone", "module", "no_python", "run_path", "use_env", "help", "virtual_local_rank"}
}

// option is where the value of an option is kept; nil: nowhere.
func (t *Torchrun) option(name string) *string {
	return map[string]*string{
		"nnodes": &t.Nnodes, "nproc_per_node": &t.NprocPerNode, "node_rank": &t.NodeRank, "rdzv_backend": &t.Backend,
		"rdzv_endpoint": &t.Endpoint, "rdzv_id": &t.ID, "master_addr": &t.MasterAddr, "master_port": &t.MasterPort,
	}[name]
}

// fullName is the one option that an abbreviation stands for.
func fullName(name string) string {
	var found []string
	all := append(
		switches(), "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval",
		"start_method", "role", "log_dir", "redirects", "tee", "local_ranks_filter", "node_rank", "master_addr", "master_port", "local_addr", "logs_specs",
	)
	for _, full := range all {
		if full == name {
			return full
		}
		if strings.HasPrefix(full, name) {
			found = append(found, full)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return name
}

// alone says whether each torchrun of a step is meant for itself.
func (t Torchrun) alone() bool {
	_, most, elastic := strings.Cut(t.Nnodes, ":")
	if !elastic {
		most = t.Nnodes
	}
	return t.Standalone || most == "1"
}

// Place is where in a step a torchrun is.
type Place struct {
	Nodes, Node int // of the step
	Tasks       int // on its node
	Local       int // which of these it is
	MasterAddr  string
	MasterPort  int    // held free on the first node; 0: unknown
	ID          string // of the rendezvous: step and attempt, so that none meets an earlier one
}

// Environ returns the variables PET_*, from which torchrun takes what its command line does
// not give, so that those of a step with one on each node are one job; has says what the
// person has set, which stays. A torchrun that is meant for itself, as by --nnodes=1, or of
// which several are on a node, meets no other.
//
// PET_RDZV_ENDPOINT wins over --master-addr with the static rendezvous
// (torch/distributed/run.py, get_rdzv_endpoint), and is left out there.
func (t Torchrun) Environ(p Place, has func(name string) bool) []string {
	var env []string
	set := func(name, value string) {
		if !has(name) {
			env = append(env, name+"="+value)
		}
	}
	static := t.Backend == "" || t.Backend == "static"
	named := t.Endpoint != "" || static && t.MasterAddr != ""
	alone := t.alone() || t.Nnodes == "" && (p.Tasks > 1 || p.Nodes < 2)
	switch {
	case alone && !named && !t.Standalone && t.Backend == "" && t.MasterPort == "":
		// As --standalone, which has a port of its own in newer versions only.
		set("PET_RDZV_BACKEND", "c10d")
		set("PET_RDZV_ENDPOINT", "localhost:0")
		set("PET_RDZV_ID", fmt.Sprintf("%s.%d.%d", p.ID, p.Node, p.Local))
		return env
	case alone, p.Tasks > 1, p.Nodes < 2:
		return env
	}
	set("PET_NNODES", strconv.Itoa(p.Nodes))
	set("PET_NODE_RANK", strconv.Itoa(p.Node))
	set("PET_RDZV_ID", p.ID)
	if p.MasterPort > 0 && !named {
		port := strconv.Itoa(p.MasterPort)
		if static && t.MasterPort != "" {
			port = t.MasterPort
		}
		set("PET_RDZV_ENDPOINT", net.JoinHostPort(strings.Trim(p.MasterAddr, "[]"), port))
		if t.Backend == "c10d" {
			// Who serves is known: torchrun would look whose address the endpoint's is, and
			// nodes that are one machine are all of that opinion.
			set("PET_RDZV_CONF", fmt.Sprintf("is_host=%t", p.Node == 0))
		}
	}
	return env
}

// OnePerNode says whether a step that asks for several torchruns on each node, of which each
// starts as many workers as the node has GPUs, means one: so many workers more than GPUs
// cannot be meant, and Slurm starts them.
func (t Torchrun) OnePerNode(tasks, gpus int) bool {
	if tasks < 2 || gpus < 1 {
		return false
	}
	switch t.NprocPerNode {
	case "gpu", "auto":
		return true
	}
	n, err := strconv.Atoi(t.NprocPerNode)
	return err == nil && n >= gpus && n > 1
}
