package server

import (
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// gapSpan is by how much time goes on at once when something is wrong: the core looks at the
// clock at least every tickSpan.
const gapSpan = 3 * job.Second

// clock makes the core's time of the machine's clock, and of one that only runs. It goes
// with the machine's; where that was set back it runs on from where it was, so that nothing
// that waits for a time waits for longer, and joins it again when that has caught up. Begin
// times and deadlines, which are times of day, come too early until then.
type clock struct {
	base  job.Time      // what it was
	since time.Duration // when the other clock showed this
}

// read is the time when the machine's clock shows wall and the other one steady. It is never
// before least.
func (k *clock) read(wall job.Time, steady time.Duration, least job.Time) job.Time {
	ran := k.base.Add(job.Duration((steady - k.since).Milliseconds()))
	now := max(wall, ran, least)
	if now > ran {
		k.base, k.since = now, steady
	}
	return now
}

// clock reads the clocks. Time does not go back.
func (c *core) clock() {
	before := c.now
	c.now = c.time.read(job.Time(c.opts.Now().UnixMilli()), c.steady(), max(c.sched.Now(), 1))
	if gap := c.now.Sub(before); before > 0 && gap >= gapSpan {
		c.skip(gap)
	}
}

// skip is that time went on by a span of which the core has seen nothing: it was stopped, or
// did not get the processor, or the clock was set. What others had to do by then they may have
// done, or had no time for either, so all of them have as much time left as before. Limits
// of jobs count the time that passed, as Slurm's do.
func (c *core) skip(gap job.Duration) {
	c.log.Warn("time has gone on at once: the controller was stopped, or the clock was set", "dur", time.Duration(gap)*time.Millisecond)
	later := func(times ...*job.Time) {
		for _, t := range times {
			if *t > 0 {
				*t = t.Add(gap)
			}
		}
	}
	for _, n := range c.nodes {
		later(&n.seen)
		n.probe = nil
	}
	c.leases.Doubt()
	for _, r := range c.runs {
		later(&r.now.cleanBy)
		for _, st := range r.Steps {
			later(&st.Gang.deadline, &st.Gang.prepareBy, &st.Gang.killAt)
		}
		for _, w := range r.now.waiting {
			later(&w.until)
		}
	}
	for _, h := range c.holders {
		later(&h.gone)
	}
}
