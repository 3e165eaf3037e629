package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// childEnv says that the test program is to be a writer, and of which kind.
const childEnv = "GANGWAY_STORE_TEST"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		if err := child(mode, os.Args[1]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a process that appends and says what was acknowledged: "ack LAST NAME" for a
// batch of three events NAME.
func child(mode, path string) error {
	s, err := Open(context.Background(), path)
	if err != nil {
		return err
	}
	fmt.Println("epoch", s.Epoch())
	if limit, ok := strings.CutPrefix(mode, "full:"); ok {
		return childFull(s, limit)
	}
	var mu sync.Mutex
	for i := range 4 {
		go func() {
			for k := 0; ; k++ {
				name := fmt.Sprintf("%d.%d.%d.%s", s.Epoch(), i, k, strings.Repeat("x", rand.IntN(3000)))
				last, err := s.Append(events(name, name, name))
				mu.Lock()
				if err != nil {
					fmt.Println("error", err)
				} else {
					fmt.Println("ack", last, name)
				}
				mu.Unlock()
			}
		}()
	}
	// Meanwhile snapshots are made, and what is before them goes: one that says that it is of
	// an event is of that event.
	for {
		var seq uint64
		if err := s.Read(context.Background(), s.Pruned(), func(n uint64, _ []byte) error { seq = n; return nil }); err != nil {
			return err
		}
		if seq == 0 {
			continue
		}
		if err := errors.Join(s.SaveSnapshot(seq, fmt.Append(nil, seq)), s.Prune(seq)); err != nil {
			return err
		}
		fmt.Println("pruned", s.Pruned())
	}
}

// childFull appends until no file may grow any more, then lets them, and goes on.
func childFull(s *SQLite, text string) error {
	signal.Ignore(syscall.SIGXFSZ)
	limit, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: before.Max}); err != nil {
		return err
	}
	refused := 0
	for k := range 400 {
		name := fmt.Sprintf("%d.%s", k, strings.Repeat("x", 500))
		last, err := s.Append(events(name, name, name))
		if err == nil {
			fmt.Println("ack", last, name)
			continue
		}
		refused++
		fmt.Println("refused", name)
		if refused == 3 {
			if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
				return err
			}
		}
	}
	fmt.Println("done", refused)
	return s.Close()
}

// writer starts a child, and returns what it says.
func writer(t *testing.T, mode, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	return cmd, lines
}

// check opens a store after a crash: it has what was acknowledged, batches are whole, and
// nothing is in it that was refused.
func check(t *testing.T, path string, acked map[uint64]string, refused map[string]bool) (epoch uint64) {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	gone := s.Pruned()
	all := readAll(t, s, gone)
	at := func(seq uint64) string { return all[seq-gone-1] }
	end := gone + uint64(len(all))
	seq, data, err := latest(t, s)
	if seq < gone || seq > end || err != nil || seq > 0 && data != fmt.Sprint(seq) {
		t.Errorf("events up to %d are gone, the last is %d, and the snapshot is %q of event %d: %v", gone, end, data, seq, err)
	}
	for last, name := range acked {
		if last > end || last > gone && at(last) != name {
			t.Errorf("event %d was acknowledged, and is not there (%d to %d are)", last, gone+1, end)
		}
	}
	if end%3 != 0 {
		t.Errorf("%d events are there: a batch of three is not whole", end)
	}
	for first := (gone+2)/3*3 + 1; first+2 <= end; first += 3 {
		if at(first) != at(first+1) || at(first) != at(first+2) {
			t.Errorf("events %d to %d are not one batch", first, first+2)
		}
		if refused[at(first)] {
			t.Errorf("event %d was refused", first)
		}
	}
	return s.Epoch()
}

// TestKilled kills writers at random: what they had acknowledged is there.
func TestKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	acked, epoch, prunes := map[uint64]string{}, uint64(0), 0
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		cmd, lines := writer(t, "write", path)
		lines.Scan()
		if now, err := strconv.ParseUint(strings.TrimPrefix(lines.Text(), "epoch "), 10, 64); err != nil || now <= epoch {
			t.Errorf("%q after epoch %d", lines.Text(), epoch)
		}
		timer := time.AfterFunc(time.Duration(rand.IntN(200))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		count := 0
		for lines.Scan() {
			f := strings.SplitN(lines.Text(), " ", 3)
			if f[0] == "error" {
				t.Error(lines.Text())
			}
			if f[0] == "pruned" {
				prunes++
				continue
			}
			if last, err := strconv.ParseUint(f[1], 10, 64); err == nil && len(f) == 3 {
				acked[last] = f[2]
				count++
			}
		}
		timer.Stop()
		_ = cmd.Wait()
		// The last line may be cut: it was not acknowledged to anybody.
		s, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		gone := s.Pruned()
		all := readAll(t, s, gone)
		_ = s.Close()
		for last, name := range acked {
			if last > gone && last <= gone+uint64(len(all)) && strings.HasPrefix(all[last-gone-1], name) {
				acked[last] = all[last-gone-1]
			}
		}
		epoch = check(t, path, acked, nil)
	}
	if len(acked) == 0 || prunes == 0 {
		t.Errorf("%d batches were acknowledged, and events removed %d times", len(acked), prunes)
	}
}

// TestFull has files that may not grow beyond some length, at many lengths: what does not
// fit is refused, whole, and when there is room again the store goes on.
func TestFull(t *testing.T) {
	t.Parallel()
	lengths := []int{40000, 61440, 65536, 70000, 100000, 131072, 200001, 300000}
	if testing.Short() {
		lengths = lengths[:2]
	}
	total := 0
	for _, limit := range lengths {
		path := filepath.Join(t.TempDir(), "db")
		cmd, lines := writer(t, "full:"+strconv.Itoa(limit), path)
		acked, refused, end := map[uint64]string{}, map[string]bool{}, ""
		after := 0
		for lines.Scan() {
			f := strings.SplitN(lines.Text(), " ", 3)
			switch f[0] {
			case "ack":
				last, _ := strconv.ParseUint(f[1], 10, 64)
				acked[last] = f[2]
				if len(refused) > 0 {
					after++
				}
			case "refused":
				refused[f[1]] = true
			case "done":
				end = f[1]
			case "error":
				t.Errorf("limit %d: %s", limit, lines.Text())
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("limit %d: %v", limit, err)
		}
		if end != "3" || after == 0 {
			t.Errorf("limit %d: %s were refused, and %d were taken after that", limit, end, after)
		}
		total += len(refused)
		check(t, path, acked, refused)
	}
	if total == 0 {
		t.Error("nothing was ever refused")
	}
}

// TestPowerCut cuts the journal at every place at which the last writes may not have come
// to the disk: what was acknowledged before is there, and nothing is half there.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	type ack struct {
		last uint64
		size int64 // of the journal, when it was acknowledged
	}
	var acks []ack
	names := map[uint64]string{}
	for k := range 12 {
		name := fmt.Sprintf("%d.%s", k, strings.Repeat("y", 300*k))
		last := mustAppend(t, s, events(name, name, name))
		st, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		acks, names[last] = append(acks, ack{last, st.Size()}), name
	}
	read := func(name string) []byte {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	db, wal := read(path), read(path+"-wal")
	_ = s.Close()
	step := 509 // no divisor of a page, so that all kinds of cuts come
	if testing.Short() {
		step = 4001
	}
	for cut := 0; cut <= len(wal); cut += step {
		for _, rest := range []byte{0, 0xa5} {
			one := filepath.Join(dir, fmt.Sprintf("cut%d-%d", cut, rest))
			torn := append([]byte(nil), wal[:cut]...)
			if rest != 0 { // the file had its length, but not these bytes
				for len(torn) < min(len(wal), cut+5000) {
					torn = append(torn, rest)
				}
			}
			for name, b := range map[string][]byte{one: db, one + "-wal": torn} {
				if err := os.WriteFile(name, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			acked := map[uint64]string{}
			for _, a := range acks {
				if a.size <= int64(cut) {
					acked[a.last] = names[a.last]
				}
			}
			check(t, one, acked, nil)
			for _, suffix := range []string{"", "-wal", "-shm"} {
				_ = os.Remove(one + suffix)
			}
			if t.Failed() {
				t.Fatalf("journal cut at %d of %d", cut, len(wal))
			}
		}
	}
}

// TestSynchronous: what makes the above true of a machine, too.
func TestSynchronous(t *testing.T) {
	t.Parallel()
	s := sqlite(t, t.TempDir()).(*SQLite)
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal"} {
		var got string
		if err := s.conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %s, want %s (%v)", pragma, got, want, err)
		}
	}
}
