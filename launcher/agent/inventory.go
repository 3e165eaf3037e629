package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// inventory is what images the store has, as REFERENCE@DIGEST of the manifests.
type inventory struct {
	dir   string
	mu    sync.Mutex
	stamp time.Time // of the directory of records when it was last read
	have  []string
}

func newInventory(dir string) *inventory { return &inventory{dir: dir} }

// list reads the store.
func (v *inventory) list() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.read()
	return slices.Clone(v.have)
}

// changed reads the store if something came or went since it was last read.
func (v *inventory) changed() ([]string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.have
	if st, err := os.Stat(v.records()); err != nil || st.ModTime().Equal(v.stamp) {
		return nil, false
	}
	v.read()
	return slices.Clone(v.have), !slices.Equal(before, v.have)
}

func (v *inventory) records() string { return filepath.Join(v.dir, "refs", "v1") }

func (v *inventory) read() {
	v.have = nil
	if st, err := os.Stat(v.records()); err == nil {
		v.stamp = st.ModTime()
	}
	store, err := image.Open(image.Options{Dir: v.dir})
	if err != nil {
		return // whoever pulls is told why
	}
	images, _ := store.List() // what is damaged is not there
	for _, i := range images {
		v.have = append(v.have, i.Reference+"@"+string(i.Manifest))
	}
}

// fetchPatience is how long fetching an image may go without progress. It is at the lowest
// priority: on a node that is busy with other things it takes its time.
const fetchPatience = 10 * time.Minute

// precache fetches images one after the other, by a program of its own: what is in images
// is not for this process.
func (a *Agent) precache(ctx context.Context, m *wire.Precache) {
	for _, name := range m.Images {
		p := &wire.Precached{Id: m.Id, Image: name}
		if f := a.fetch(ctx, name, m.Rate, p); f != nil {
			p.Fault = mustJSON(f)
		}
		p.Done = true
		a.sayFetched(p)
	}
}

// fetch fetches an image, as long as that has progress, and says how far it is.
func (a *Agent) fetch(ctx context.Context, name string, rate int64, p *wire.Precached) *job.Fault {
	args := []string{"image", "precache", "--json"}
	if rate > 0 {
		args = append(args, "--limit-rate", strconv.FormatInt(rate, 10))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.Gangway, append(args, "--", name)...)
	cmd.Env = a.Environ
	proc.Confine(cmd)
	var said bytes.Buffer
	cmd.Stderr = &said
	var stuck atomic.Bool
	timer := time.AfterFunc(a.patience, func() { stuck.Store(true); cancel() })
	defer timer.Stop()
	last := map[string]bool{}
	err := runLines(a.Orphans, cmd, func(line []byte) {
		if key := string(line); !last[key] { // what does not move is no progress
			if len(last) >= maxLayers {
				clear(last)
			}
			last[key] = true
			timer.Reset(a.patience)
		}
		a.fetched(p, line)
	})
	if err == nil {
		return nil
	}
	f := &job.Fault{What: "fetch image " + name + " on node " + a.Node.Name, Cause: firstError(said.String(), err)}
	if stuck.Load() {
		f.Cause = fmt.Sprintf("no progress for %s; it had %d of %d bytes of a layer", a.patience, p.Bytes, p.Total)
		f.Hint = "see whether the node reaches the registry (gangway doctor there), and whether its disk has room; then again: gangway image precache --nodes " + a.Node.Name + " " + name
	}
	return f
}

// maxLayers bounds how many lines of progress are remembered.
const maxLayers = 1000

// fetched takes a line of progress, or the result.
func (a *Agent) fetched(p *wire.Precached, line []byte) {
	var e struct {
		Event       string
		Manifest    string
		Done, Total int64
	}
	if json.Unmarshal(line, &e) != nil {
		return
	}
	if e.Event == "image" {
		p.Digest = e.Manifest
		return
	}
	p.Bytes, p.Total = e.Done, e.Total
	a.sayFetched(p)
}

func (a *Agent) sayFetched(p *wire.Precached) {
	a.inputs.put(sayIn{&wire.AgentMessage{Message: &wire.AgentMessage_Precached{Precached: &wire.Precached{
		Id: p.Id, Image: p.Image, Digest: p.Digest, Fault: p.Fault, Done: p.Done, Bytes: p.Bytes, Total: p.Total,
	}}}})
}

// runLines runs a command and hands on the lines of its output.
func runLines(o *Orphans, cmd *exec.Cmd, line func([]byte)) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := o.Start(cmd); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line(lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, out) // a line that is too long
	return o.Wait(cmd)
}

// firstError is what a program said went wrong, in one line.
func firstError(said string, err error) string {
	for line := range strings.Lines(said) {
		if _, what, ok := strings.Cut(line, "error: "); ok {
			return strings.TrimSpace(what)
		}
	}
	return err.Error()
}
