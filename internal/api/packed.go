package api

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Packed is the media type of a Page of jobs in a form that is read in a tenth of the time
// that JSON takes: who asks for 10,000 jobs wants to see them now. GET /v1/jobs answers in
// it where it is accepted. It has what lists of jobs have, which is all but Shares, Spec,
// Fault, Failed, CancelledBy and Requeued. The number is that of the form.
const Packed = "application/x-gangway-jobs-1"

// A packed page is Now, Next, the number of jobs, and the jobs. Numbers are varints, texts
// have their length before them, lists their count.

// AppendPacked appends a page in packed form.
func AppendPacked(b []byte, items []*Job, next string, now job.Time) []byte {
	p := packer{b}
	p.int(int64(now))
	p.text(next)
	p.int(int64(len(items)))
	for _, j := range items {
		p.job(j)
	}
	return p.b
}

type packer struct{ b []byte }

func (p *packer) int(n int64) { p.b = binary.AppendVarint(p.b, n) }

func (p *packer) text(s string) {
	p.b = binary.AppendUvarint(p.b, uint64(len(s)))
	p.b = append(p.b, s...)
}

func (p *packer) flag(on bool) {
	if on {
		p.b = append(p.b, 1)
	} else {
		p.b = append(p.b, 0)
	}
}

func (p *packer) job(j *Job) {
	p.flag(j.Array != nil)
	if a := j.Array; a != nil {
		for _, n := range []int64{int64(a.Job), int64(a.Task), int64(a.Count), int64(a.Min), int64(a.Max), int64(a.Step)} {
			p.int(n)
		}
	}
	p.int(int64(len(j.Waiting)))
	for _, r := range j.Waiting {
		p.int(int64(r.First))
		p.int(int64(r.Last))
		p.int(int64(r.Step))
	}
	for _, n := range [...]int64{
		int64(j.ID), int64(j.Throttle), int64(j.UID), int64(j.GID), int64(j.State), int64(j.Priority), int64(j.Nice), int64(j.Restarts),
		int64(j.Attempt), int64(j.Submit), int64(j.Eligible), int64(j.Start), int64(j.End), int64(j.Expected), int64(j.Limit),
		int64(j.Deadline), int64(j.Nodes), int64(j.Tasks), int64(j.CPUs), j.Memory.MiB, int64(j.Memory.Per), int64(j.Exit),
		int64(j.Signal), int64(j.FailedRanks),
	} {
		p.int(n)
	}
	p.flag(j.Held)
	p.flag(j.Batch)
	p.flag(j.Memory.All)
	p.flag(j.Requeue)
	p.flag(j.Exclusive)
	for _, s := range [...]string{
		j.Name, j.User, j.Account, j.QOS, j.Partition, j.Phase, j.Reason, j.Why, j.GRES, j.Command, j.Cwd, j.Input, j.Output, j.Error,
		j.Image, j.Digest, j.Comment, j.Dependency, j.Constraint, j.SubmitHost, j.Required, j.Excluded,
	} {
		p.text(s)
	}
	p.int(int64(len(j.NodeList)))
	for _, name := range j.NodeList {
		p.text(name)
	}
}

// errPacked is that a packed page ends too early or says what cannot be.
var errPacked = errors.New("damaged list of jobs")

// ParsePacked reads a packed page. The texts in it are parts of s.
func ParsePacked(s string) (page Page[Job], err error) {
	u := unpacker{s: s}
	page.Now = job.Time(u.int())
	page.Next = u.text()
	// A job has more bytes than this, so that a false count takes no memory.
	n := u.count(40)
	page.Items = make([]Job, n)
	for i := range page.Items {
		u.job(&page.Items[i])
	}
	if u.bad || len(u.s) > 0 {
		return Page[Job]{}, fmt.Errorf("read jobs: %w", errPacked)
	}
	return page, nil
}

type unpacker struct {
	s   string // what is left
	bad bool
}

// fail makes all that follows empty.
func (u *unpacker) fail() { u.s, u.bad = "", true }

func (u *unpacker) uint() uint64 {
	var n uint64
	for i := 0; i < len(u.s) && i < binary.MaxVarintLen64; i++ {
		c := u.s[i]
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			u.s = u.s[i+1:]
			return n
		}
	}
	u.fail()
	return 0
}

func (u *unpacker) int() int64 {
	n := u.uint()
	return int64(n>>1) ^ -int64(n&1)
}

// count is a number of things that have at least so many bytes each.
func (u *unpacker) count(least int) int {
	n := u.int()
	if n < 0 || n > int64(len(u.s)/least) {
		u.fail()
		return 0
	}
	return int(n)
}

func (u *unpacker) text() string {
	n := u.uint()
	if n > uint64(len(u.s)) {
		u.fail()
		return ""
	}
	text := u.s[:n]
	u.s = u.s[n:]
	return text
}

func (u *unpacker) flag() bool {
	if u.s == "" {
		u.fail()
		return false
	}
	on := u.s[0] != 0
	u.s = u.s[1:]
	return on
}

func (u *unpacker) job(j *Job) {
	if u.flag() {
		j.Array = &job.ArrayFacts{
			Job: job.ID(u.int()), Task: uint32(u.int()), Count: int(u.int()), Min: uint32(u.int()), Max: uint32(u.int()), Step: uint32(u.int()),
		}
	}
	if n := u.count(3); n > 0 {
		j.Waiting = make([]job.Range, n)
		for i := range j.Waiting {
			j.Waiting[i] = job.Range{First: uint32(u.int()), Last: uint32(u.int()), Step: uint32(u.int())}
		}
	}
	j.ID, j.Throttle, j.UID, j.GID = job.ID(u.int()), int(u.int()), uint32(u.int()), uint32(u.int())
	j.State, j.Priority, j.Nice, j.Restarts = job.State(u.int()), uint32(u.int()), int32(u.int()), int(u.int())
	j.Attempt, j.Submit, j.Eligible, j.Start = int(u.int()), job.Time(u.int()), job.Time(u.int()), job.Time(u.int())
	j.End, j.Expected, j.Limit = job.Time(u.int()), job.Time(u.int()), job.Duration(u.int())
	j.Deadline, j.Nodes, j.Tasks, j.CPUs = job.Time(u.int()), int(u.int()), int(u.int()), int(u.int())
	j.Memory.MiB, j.Memory.Per, j.Exit = u.int(), job.Unit(u.int()), int(u.int())
	j.Signal, j.FailedRanks = int(u.int()), int(u.int())
	j.Held, j.Batch, j.Memory.All, j.Requeue, j.Exclusive = u.flag(), u.flag(), u.flag(), u.flag(), u.flag()
	for _, s := range [...]*string{
		&j.Name, &j.User, &j.Account, &j.QOS, &j.Partition, &j.Phase, &j.Reason, &j.Why, &j.GRES, &j.Command, &j.Cwd, &j.Input, &j.Output,
		&j.Error, &j.Image, &j.Digest, &j.Comment, &j.Dependency, &j.Constraint, &j.SubmitHost, &j.Required, &j.Excluded,
	} {
		*s = u.text()
	}
	if n := u.count(1); n > 0 {
		j.NodeList = make([]string, n)
		for i := range j.NodeList {
			j.NodeList[i] = u.text()
		}
	}
}
