package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rough: a host whose packets are late, lost and overtake each other, and one whose line is
// slow, run jobs like the others: each once, with all of their output, and neither is given up.
func (h *hosts) rough(t *testing.T, image string) {
	n4 := h.all[4]
	line := h.roughLine(t, "near3", "far3")
	h.root(t, h.hub, "ip link add br3 type bridge; ip link set br3 up; ip link set near3 master br3 up; ip link set far3 master br0 up; ip link set v3 master br3")
	h.root(t, n4, "tc qdisc add dev eth0 root tbf rate 1mbit burst 4k latency 2s")
	h.root(t, h.hub, "tc qdisc add dev v4 root tbf rate 1mbit burst 4k latency 2s")
	for range 3 {
		o := outcomeOf(t, h.command("srun", "-N2", "-w", "n[3-4]", "--container-image="+image, "allreduce", "5"))
		if o.code != 0 || sorted(o.out) != sums(2) {
			t.Errorf("srun: exit %d\n%s%s", o.code, o.out, o.err)
		}
	}
	// 400 KB of output by way of both lines, as it was.
	id := h.submit(t, "echo $SLURM_JOB_ID >> roughly\nsrun sh -c 'i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo $SLURM_PROCID a line that is to be there $i; done'", "-N2", "-w", "n[3-4]", "-o", "out-%j")
	h.completes(t, id)
	var want strings.Builder
	for rank := range 2 {
		for i := range 5000 {
			want.WriteString(fmt.Sprintf("%d a line that is to be there %d\n", rank, i+1))
		}
	}
	if got := sorted(h.file(t, "out-"+id, "")); got != sorted(want.String()) {
		t.Errorf("output has %d bytes, want %d", len(got), len(want.String()))
	}
	if got := h.file(t, "roughly", ""); got != id+"\n" {
		t.Errorf("the job was started more than once:\n%s", got)
	}
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
	passed, lost, overtaken := line.passed.Load(), line.lost.Load(), line.overtaken.Load()
	t.Logf("%d packets have passed, %d were lost, %d were overtaken", passed, lost, overtaken)
	if lost < 10 || overtaken < 10 {
		t.Error("the line is not rough")
	}
	line.stop()
	h.root(t, h.hub, "ip link set v3 master br0; ip link del br3; tc qdisc del dev v4 root")
	h.root(t, n4, "tc qdisc del dev eth0 root")
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
}

// roughLine carries packets between two devices of the hub.
type roughLine struct {
	passed, lost, overtaken atomic.Int64
	stop                    func()
}

// roughLine makes the devices, which end with it. They are such that the kernel leaves no
// checksum and no long packet to be completed by who gets them.
func (h *hosts) roughLine(t *testing.T, names ...string) *roughLine {
	t.Helper()
	line, ended := &roughLine{}, make(chan struct{}, 2)
	var ends []*os.File
	h.within(t, h.hub, func() error {
		for _, name := range names {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			request, err := unix.NewIfreq(name)
			if err != nil {
				return err
			}
			request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
				return err
			}
			ends = append(ends, os.NewFile(uintptr(fd), name))
		}
		return nil
	})
	for i := range ends {
		go func() {
			line.carry(ends[i], ends[1-i])
			ended <- struct{}{}
		}()
	}
	line.stop = sync.OnceFunc(func() {
		for _, f := range ends {
			_ = f.Close() // which ends who reads
		}
		for range ends {
			<-ended
		}
	})
	t.Cleanup(line.stop)
	return line
}

// roughest is how late a packet may be.
const roughest = 100 * time.Millisecond

// carry takes packets from one end to the other: of 100, 3 are lost, and 10 are so late that
// others overtake them.
func (l *roughLine) carry(from, to *os.File) {
	var sent, latest atomic.Int64
	for {
		b := make([]byte, 2048)
		n, err := from.Read(b)
		if err != nil {
			return // it was closed
		}
		if rand.IntN(100) < 3 {
			l.lost.Add(1)
			continue
		}
		late := time.Duration(rand.IntN(5)) * time.Millisecond
		if rand.IntN(10) == 0 {
			late = roughest/4 + rand.N(roughest/2)
		}
		number := sent.Add(1)
		time.AfterFunc(late, func() {
			if latest.Load() > number {
				l.overtaken.Add(1)
			} else {
				latest.Store(number)
			}
			if _, err := to.Write(b[:n]); err == nil {
				l.passed.Add(1)
			}
		})
	}
}

// within does something in a host's network.
func (h *hosts) within(t *testing.T, one *lonelyHost, f func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with it: it is of no use to others
		fd, err := unix.Open("/proc/"+strconv.Itoa(one.holder.Process.Pid)+"/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}
