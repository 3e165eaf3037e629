package sched

import (
	"fmt"
	"math"
)

// tooFew says why a class can never start of which nodes could take a share, and the nearest
// that could be. most is how many nodes its partitions have.
func (s *Scheduler) tooFew(c *class, most int) (why, nearest string) {
	need := math.MaxInt
	for _, p := range s.partitionsOf(c.spec) {
		if !s.admits(c, p) {
			continue
		}
		for _, alt := range alternatives(c.spec.Constraint) {
			if o, could, _ := s.option(c.spec, p, alt, false); could > 0 {
				need = min(need, o.nodes)
			}
		}
	}
	if need <= c.could || need == math.MaxInt {
		return fmt.Sprintf("at most %d of %d nodes could take their share of it, and not near enough to each other or not enough", c.could, most),
			fmt.Sprintf("--nodes=%d", c.could)
	}
	have := fmt.Sprintf("its partition has %d", most)
	if c.could < most {
		have = fmt.Sprintf("%d of the %d in its partition could take a share of it", c.could, most)
	}
	if c.spec.MinNodes > 0 || c.spec.Tasks == 0 {
		return fmt.Sprintf("it asks for %d nodes, and %s", need, have), fmt.Sprintf("--nodes=%d", c.could)
	}
	each := (c.spec.Tasks + need - 1) / need // as many as a node takes
	return fmt.Sprintf("its %d tasks need %d nodes, and %s", c.spec.Tasks, need, have), fmt.Sprintf("--ntasks=%d", each*c.could)
}

// brokenSegments says so if a class can never start because its segments would need more nodes
// than it may have, and the nearest that could be; empty if that is not why.
func (s *Scheduler) brokenSegments(c *class) (why, nearest string) {
	seg, spec := c.spec.Topology.Segment, *c.spec
	if seg < 2 {
		return "", ""
	}
	spec.Topology.Segment = 0
	for _, p := range s.partitionsOf(c.spec) {
		if !s.admits(c, p) {
			continue
		}
		for _, alt := range alternatives(c.spec.Constraint) {
			if o, could, _ := s.option(&spec, p, alt, false); could >= o.nodes && o.nodes%seg != 0 {
				whole := (o.nodes + seg - 1) / seg * seg
				return fmt.Sprintf("it takes %d nodes, and as segments of %d nodes it would be %d, more than there are, may be or have a task", o.nodes, seg, whole),
					fmt.Sprintf("--segment=%d", divisor(o.nodes, seg))
			}
		}
	}
	return "", ""
}

// divisor is the largest number up to most that divides n.
func divisor(n, most int) int {
	for n%most != 0 {
		most--
	}
	return most
}
