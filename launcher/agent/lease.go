package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/lease"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// holding is what a node on a host of its own may do without word from the controller: it
// carries a [lease.Holder] out. It has a goroutine of its own, so that nothing that the agent
// is busy with makes it late. Nil is that of a node that cannot be cut off.
type holding struct {
	file  string
	peers *peers
	log   *slog.Logger
	now   func() time.Duration // of a clock that counts while the machine sleeps
	post  func(any)            // to the agent's loop

	mu     sync.Mutex
	holder *lease.Holder
	saved  lease.Saved
	cancel context.CancelFunc // of the session
}

// What it posts.
type (
	cutOffIn struct{ spans lease.Spans }  // the lease is over
	holdIn   struct{ span time.Duration } // ranks may run for so long without their agent
)

const leaseTick = 100 * time.Millisecond

// bootTime is the time since the machine started, with what it slept.
func bootTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// newHolding takes up what an agent before this one has saved.
func (a *Agent) newHolding() *holding {
	k := &holding{
		file: filepath.Join(a.Dir, "lease.json"), peers: &peers{hosts: a.Hosts}, log: a.Log, now: bootTime,
		post: func(in any) { a.inputs.put(in) },
	}
	saved := new(lease.Saved)
	b, err := os.ReadFile(k.file)
	if err == nil {
		err = json.Unmarshal(b, saved)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		saved = nil
	case err != nil: // as if the machine had been started anew
		a.Log.Error("lease cannot be read", "err", err)
		saved = &lease.Saved{Spans: lease.Spans{Lease: lease.Default, Lost: time.Minute}}
	}
	k.holder = lease.New(saved, a.boot, k.now())
	k.saved = k.holder.Saved
	return k
}

// save writes what has changed. The caller has mu. What is not firmly on disk survives this
// process, and not the machine.
func (k *holding) save(firmly bool) {
	s := k.holder.Saved
	if !firmly && s.Permit == k.saved.Permit && s.Heard == k.saved.Heard && s.Cut == k.saved.Cut && s.Promise == k.saved.Promise {
		return
	}
	b, err := json.Marshal(s)
	if err == nil {
		write := func(f *os.File) error { _, err := f.Write(b); return err }
		if firmly {
			err = fsx.WriteFile(context.Background(), k.file, fsx.Options{Mode: 0o600}, write)
		} else if err = os.WriteFile(k.file+".new", b, 0o600); err == nil {
			err = os.Rename(k.file+".new", k.file)
		}
	}
	if err != nil {
		k.log.Error("lease is not on disk", "err", err)
		return
	}
	k.saved = s
}

// beat completes a heartbeat.
func (k *holding) beat(m *wire.Heartbeat) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.holder.Beat(k.now())
	m.Seq, m.Heard = b.Seq, b.Heard
}

// answered takes an answer to one.
func (k *holding) answered(m *wire.Answer) {
	if k == nil {
		return
	}
	a := lease.Answer{Seq: m.Seq, Number: m.Number, Spans: lease.Spans{Lease: ms(m.LeaseMs), Lost: ms(m.LostMs)}, Council: lease.Council{Number: m.Council}}
	for _, one := range m.Members {
		a.Council.Members = append(a.Council.Members, lease.Member{Name: one.Name, Address: one.Address})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.save(k.holder.Answered(a, k.now()))
}

// vote says whether this node has lost the controller, and what that allows another one is
// on disk.
func (k *holding) vote() (silence time.Duration, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	silence, lost = k.holder.Vote(k.now())
	if lost {
		k.save(false)
	}
	return silence, lost
}

// start says whether ranks may be started, and for how long they may run without their agent;
// 0: for ever.
func (k *holding) start() (span time.Duration, ok bool) {
	if k == nil {
		return 0, true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holder.Blank() {
		return 0, true
	}
	now := k.now()
	return k.holder.Spans.Away(), k.holder.Valid(now) && k.holder.Firm(now)
}

// cut says whether ranks were ended since the node was cut off, and the controller has not
// heard so yet.
func (k *holding) cut() bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.holder.Cut
}

// setCut notes that; it is on disk when it returns.
func (k *holding) setCut(cut bool) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holder.Cut != cut {
		k.holder.Cut = cut
		k.save(true)
	}
}

// session notes what ends the present session: what is stuck in it is not waited for.
func (k *holding) session(cancel context.CancelFunc) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cancel = cancel
}

// keep looks at the time until ctx ends.
func (k *holding) keep(ctx context.Context) {
	ticker := time.NewTicker(leaseTick)
	defer ticker.Stop()
	held := time.Duration(0)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		now := k.now()
		v := k.holder.Tick(now)
		k.save(false)
		spans, council, firm, cancel := k.holder.Spans, k.holder.Council, k.holder.Firm(now), k.cancel
		k.mu.Unlock()
		if v.End {
			k.post(cutOffIn{spans})
			if cancel != nil {
				cancel()
			}
		}
		if v.Ask {
			k.ask(ctx, council, spans)
		}
		if firm && now >= held+spans.Beat() {
			held = now
			k.post(holdIn{spans.Away()})
		}
	}
}

// ask asks the council, and does not wait for it.
func (k *holding) ask(ctx context.Context, council lease.Council, spans lease.Spans) {
	asked := k.now()
	var silences []time.Duration
	for _, m := range council.Members {
		go func() {
			silence, lost, err := k.peers.vote(ctx, m, spans.Beat())
			if err != nil || !lost {
				return
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			silences = append(silences, silence)
			k.holder.Votes(asked, council.Number, silences, k.now())
			k.save(false)
		}()
	}
}

// cutOff ends all ranks of the node: the controller may begin their jobs elsewhere.
func (a *Agent) cutOff(ctx context.Context, s lease.Spans) {
	fault := &job.Fault{
		What:  fmt.Sprintf("lease ended: node %s was cut off from the controller", a.Node.Name),
		Cause: fmt.Sprintf("it heard nothing of it for %s, and others did not say that they had lost it too", s.Lease*3/4),
		Node:  true,
	}
	any := false
	for _, h := range a.steps {
		any = any || h.phase != ended
	}
	a.Log.Warn("node is cut off from the controller", "steps", len(a.steps))
	defer func() {
		if any {
			a.lease.setCut(true)
		}
	}()
	a.everyStep(ctx, killIn{grace: s.Grace(), slack: s.Slack(), why: job.EndNodeFailure, fault: fault})
}
