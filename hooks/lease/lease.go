// Package lease lets runs on one machine, without a cluster, take GPUs from each other's
// sight: two concurrent runs with one GPU each get different ones.
//
//	l, err := lease.Take(ctx, lease.Options{Wait: wait}, lease.Want{IDs: uuids, N: 2})
//	if err != nil { ... }
//	defer l.Release()
//	use(l.IDs())
//
// A GPU is held by a listening Unix socket with an abstract name (unix(7)) made of its UUID. The
// kernel lets one process in a network namespace have it, whoever its user is, and takes it
// back when the process ends, however that ends, and all that it forked without exec; there
// are no files to own, to clean up or to fill with lies, and who has one is asked from the
// kernel (SO_PEERCRED).
//
// Leases are advice among runs of Gangway: they keep nobody from opening a device, and do
// not reach into other network namespaces or machines. Under a cluster the allocation says
// which GPUs a job has, and nothing here is called. Any user may hold all names, as any
// user may use all GPUs; the error says who does.
//
// All functions may be called by any number of goroutines; a Lease is for one.
package lease

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Options says how leases are taken. The zero value does not wait.
type Options struct {
	// Wait is how long GPUs that others have are waited for; negative is as long as it takes.
	Wait time.Duration
	// Waiting is called once before Take begins to wait, with what for. It may be nil.
	Waiting func(*BusyError)
	// Space sets leases apart that shall not know each other, as those of tests. At most 16
	// bytes.
	Space string
	// Proc is where the proc file system is, "/proc" if empty. It gives the names of holders.
	Proc string
}

// Want is which GPUs, or MIG instances, are wanted.
type Want struct {
	// IDs are their UUIDs, the best first.
	IDs []string
	// N is how many of them; 0 is all.
	N int
}

// Holder is who has a GPU.
type Holder struct {
	ID      string
	PID     int    // 0 if it is not known
	UID     int    // -1 if it is not known
	Command string // its name, if /proc tells
}

// String is for people.
func (h Holder) String() string {
	if h.PID == 0 {
		return h.ID
	}
	s := fmt.Sprintf("%s (process %d", h.ID, h.PID)
	if h.Command != "" {
		s += " " + strconv.Quote(h.Command)
	}
	return fmt.Sprintf("%s of user %d)", s, h.UID)
}

// ErrBusy says that others have too many of the GPUs.
var ErrBusy = errors.New("in use")

// BusyError is an ErrBusy with who has what.
type BusyError struct {
	N    int      // GPUs that were wanted
	Free []string // that nobody had
	Held []Holder
}

// Error implements error.
func (e *BusyError) Error() string {
	held := make([]string, 0, len(e.Held))
	for _, h := range e.Held {
		held = append(held, h.String())
	}
	return fmt.Sprintf("%d wanted, %d free, %v: %s", e.N, len(e.Free), ErrBusy, strings.Join(held, ", "))
}

// Is says that a BusyError is an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// Lease is GPUs that nobody else has.
type Lease struct {
	ids     []string // in the order of Want.IDs
	sockets []int
}

// IDs returns the GPUs, the best first.
func (l *Lease) IDs() []string { return slices.Clone(l.ids) }

// Release gives the GPUs back. A second call does nothing.
func (l *Lease) Release() error {
	var err error
	for _, fd := range l.sockets {
		err = errors.Join(err, syscall.Close(fd))
	}
	l.ids, l.sockets = nil, nil
	if err != nil {
		return fmt.Errorf("give GPUs back: %w", err)
	}
	return nil
}

func (l *Lease) add(id string, fd int) {
	l.ids, l.sockets = append(l.ids, id), append(l.sockets, fd)
}

// drop gives back what was taken for nothing.
func (l *Lease) drop() {
	_ = l.Release() // a socket that was never used has nothing to report
}

// Take takes N of the GPUs, all or none, the best that are free. Where too few are free it
// waits; the error is a BusyError once Options.Wait is over.
//
// Those that wait stand in a queue. Its first keeps what it gets and looks most often, so
// that many runs with one GPU do not starve one with eight. The others, and runs that do
// not wait, take enough at once or nothing, so that nobody waits for a GPU only because
// somebody before him waits for another.
func Take(ctx context.Context, opt Options, want Want) (*Lease, error) {
	if err := check(opt, &want); err != nil {
		return nil, err
	}
	if len(want.IDs) == 0 {
		return &Lease{}, nil
	}
	l, err := take(ctx, opt, want)
	var busy *BusyError
	if errors.As(err, &busy) {
		hint := "wait for them: --gpu-wait=10m"
		if opt.Wait != 0 {
			hint = fmt.Sprintf("wait longer than %v, or ask for fewer", opt.Wait)
		}
		return nil, &fault.Error{What: fmt.Errorf("take GPUs: %w", err), Hint: hint}
	}
	if err != nil {
		return nil, fmt.Errorf("take GPUs: %w", err)
	}
	return l, nil
}

func check(opt Options, want *Want) error {
	if len(opt.Space) > 16 {
		return fmt.Errorf("take GPUs: %q is longer than 16 bytes", opt.Space)
	}
	for i, id := range want.IDs {
		if id == "" || slices.Contains(want.IDs[:i], id) {
			return &fault.Error{What: fmt.Errorf("take GPUs: %q is named twice or empty", id), Hint: "name each GPU once"}
		}
	}
	if want.N == 0 {
		want.N = len(want.IDs)
	}
	if want.N < 0 || want.N > len(want.IDs) {
		cause := "there are " + strings.Join(want.IDs, ", ")
		if len(want.IDs) == 0 {
			cause = "there is none"
		}
		return &fault.Error{
			What:  fmt.Errorf("take GPUs: %d wanted of %d", want.N, len(want.IDs)),
			Cause: cause,
			Hint:  fmt.Sprintf("ask for at most --gpus=%d", len(want.IDs)),
		}
	}
	return nil
}

// pickLock is held for the moment of picking, so that two runs do not halve what is free.
// It is the name of no UUID.
const pickLock = "\x01pick"

func take(ctx context.Context, opt Options, want Want) (*Lease, error) {
	var over <-chan time.Time // never, for a negative Wait
	if opt.Wait >= 0 {
		timer := time.NewTimer(opt.Wait)
		defer timer.Stop()
		over = timer.C
	}
	l, taken, err := pick(ctx, opt, want)
	if err != nil || l != nil {
		return l, err
	}
	if opt.Wait == 0 {
		return nil, busy(opt, want, taken)
	}
	if opt.Waiting != nil {
		opt.Waiting(busy(opt, want, taken))
	}
	q := queue{fd: -1}
	defer q.leave()
	part := &Lease{}
	begin := time.Now()
	for {
		if err := q.advance(opt); err != nil {
			part.drop()
			return nil, err
		}
		longest := 50 * time.Millisecond
		if q.first() {
			longest = 10 * time.Millisecond
			if taken, err = part.gather(opt, want); err != nil {
				part.drop()
				return nil, err
			}
			if len(part.ids) == want.N {
				part.sort(want.IDs)
				return part, nil
			}
		} else if l, taken, err = pick(ctx, opt, want); err != nil || l != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			part.drop()
			return nil, context.Cause(ctx)
		case <-over:
			part.drop()
			return nil, busy(opt, want, taken)
		case <-time.After(min(max(time.Since(begin)/100, time.Millisecond), longest)):
		}
	}
}

// pick takes N of the GPUs at once; a nil Lease says that too many are taken.
func pick(ctx context.Context, opt Options, want Want) (l *Lease, taken []string, err error) {
	lock, err := pickTurn(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if lock >= 0 {
			_ = syscall.Close(lock)
		}
	}()
	l = &Lease{}
	if taken, err = l.gather(opt, want); err != nil || len(l.ids) < want.N {
		l.drop()
		return nil, taken, err
	}
	return l, nil, nil
}

// pickTurn waits until nobody else picks, which takes a moment. A process that was stopped
// in that moment is not waited for: what is at stake is an order, no lease.
func pickTurn(ctx context.Context, opt Options) (int, error) {
	for range 200 {
		fd, err := hold(opt, pickLock)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return fd, err
		}
		select {
		case <-ctx.Done():
			return -1, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	return -1, nil
}

// gather adds GPUs that are free, up to N, and says which it found taken.
func (l *Lease) gather(opt Options, want Want) (taken []string, err error) {
	for _, id := range want.IDs {
		if len(l.ids) == want.N {
			break
		}
		if slices.Contains(l.ids, id) {
			continue
		}
		fd, err := hold(opt, id)
		if errors.Is(err, syscall.EADDRINUSE) {
			taken = append(taken, id)
			continue
		}
		if err != nil {
			return nil, err
		}
		l.add(id, fd)
	}
	return taken, nil
}

// sort restores the order of preference; which socket is whose does not matter any more.
func (l *Lease) sort(order []string) {
	slices.SortFunc(l.ids, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
}

// busy says who has those that were found taken.
func busy(opt Options, want Want, taken []string) *BusyError {
	e := &BusyError{N: want.N, Held: Holders(opt, taken)}
	for _, id := range want.IDs {
		if !slices.Contains(taken, id) {
			e.Free = append(e.Free, id)
		}
	}
	for _, id := range taken { // given back in between, or a socket that does not listen
		if !slices.ContainsFunc(e.Held, func(h Holder) bool { return h.ID == id }) {
			e.Held = append(e.Held, Holder{ID: id, UID: -1})
		}
	}
	return e
}

// Holders says who has which of these GPUs. Those that nobody has are left out.
func Holders(opt Options, ids []string) []Holder {
	var all []Holder
	for _, id := range ids {
		h, ok := holder(opt, id)
		if !ok {
			continue
		}
		if h.PID > 0 {
			b, err := os.ReadFile(filepath.Join(orProc(opt.Proc), strconv.Itoa(h.PID), "comm"))
			if err == nil {
				h.Command = strings.TrimSpace(string(b))
			}
		}
		all = append(all, h)
	}
	return all
}

func orProc(dir string) string {
	if dir == "" {
		return "/proc"
	}
	return dir
}

// hold makes the socket of a name; EADDRINUSE is somebody else's.
func hold(opt Options, name string) (int, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = os.NewSyscallError("bind", syscall.Bind(fd, address(opt, name)))
	if err == nil {
		// Nobody accepts: connections are made only to learn who listens.
		err = os.NewSyscallError("listen", syscall.Listen(fd, syscall.SOMAXCONN))
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// holder says who has the socket of a name, if somebody has.
func holder(opt Options, name string) (Holder, bool) {
	h := Holder{ID: name, UID: -1}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return h, false
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Connect(fd, address(opt, name)); err != nil {
		// Refused is nobody's; anything else is a full queue or a stranger's socket.
		return h, !errors.Is(err, syscall.ECONNREFUSED)
	}
	if c, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
		h.PID, h.UID = int(c.Pid), int(c.Uid)
	}
	return h, true
}

// address is the abstract address of a name. Names that are too long for one are hashed.
func address(opt Options, name string) *syscall.SockaddrUnix {
	if len(name) > 64 {
		sum := sha256.Sum256([]byte(name))
		name = "sha256:" + hex.EncodeToString(sum[:16])
	}
	return &syscall.SockaddrUnix{Name: "@gangway/gpu/" + opt.Space + "/" + name}
}
