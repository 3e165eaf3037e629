package rank

import "strconv"

// torch are the variables by which ranks find each other.
func (e *Env) torch(s *set, local int) error {
	if e.GPUs != nil {
		names := ""
		for i, at := range e.share(local) {
			if i > 0 {
				names += ","
			}
			names += e.GPUs[at]
		}
		s.add("CUDA_VISIBLE_DEVICES", names)
	}
	if e.isBatch() {
		return nil
	}
	s.number("RANK", e.node.Ranks[local])
	s.number("LOCAL_RANK", local)
	s.number("WORLD_SIZE", e.Spec.Tasks)
	s.number("LOCAL_WORLD_SIZE", len(e.node.Ranks))
	s.number("NODE_RANK", e.Node)
	if e.MasterPort > 0 {
		if e.user["MASTER_ADDR"] == "" {
			s.add("MASTER_ADDR", e.MasterAddr)
		}
		if e.user["MASTER_PORT"] == "" {
			s.add("MASTER_PORT", strconv.Itoa(e.MasterPort))
		}
	}
	return nil
}
