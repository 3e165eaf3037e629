package image

import (
	"encoding/binary"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// Phase is what is being done for a layer.
type Phase string

// The phases of a layer, in the order in which a layer meets them; a cached one
// meets only the first.
const (
	PhaseCached  Phase = "cached"  // it is in the store
	PhaseWait    Phase = "wait"    // nothing yet
	PhaseFetch   Phase = "fetch"   // its bytes come, and are converted as they come
	PhaseConvert Phase = "convert" // all bytes are there; the file is being finished
	PhaseDone    Phase = "done"
)

// Progress is how far a layer is.
type Progress struct {
	Layer  int        // from 0, the lowest
	Layers int        // how many the image has
	Digest oci.Digest // of the layer's blob
	Phase  Phase
	Done   int64 // bytes of the blob
	Total  int64
	// Other is set where another process does the work.
	Other bool
}

// progressEvery is how often a process tells others how far it is. They are told by
// a file of some bytes, which costs next to nothing.
const progressEvery = 200 * time.Millisecond

// meter counts what is read of a blob, and tells this process and others.
type meter struct {
	r      io.Reader
	done   atomic.Int64
	next   time.Time
	report func(Phase, int64)
	file   *os.File // nil where it could not be made
	err    error    // of reading, but its end
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	done := m.done.Add(int64(n))
	if err != nil && err != io.EOF {
		m.err = err
	}
	if now := time.Now(); err != nil || now.After(m.next) {
		m.next = now.Add(progressEvery)
		phase := PhaseFetch
		if err == io.EOF {
			phase = PhaseConvert
		}
		m.tell(phase, done)
	}
	return n, err
}

func (m *meter) tell(phase Phase, done int64) {
	m.report(phase, done)
	if m.file == nil {
		return
	}
	code := uint64(0)
	if phase == PhaseConvert {
		code = 1
	}
	// Others see no progress if it goes wrong; nothing else depends on it.
	b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(done)), code)
	_, _ = m.file.WriteAt(b, 0)
}

// readProgress reads what another process told. It is a guess at best while that
// writes, or after it died.
func readProgress(name string) (Phase, int64, bool) {
	b, err := os.ReadFile(name)
	if err != nil || len(b) != 16 {
		return "", 0, false
	}
	done := int64(binary.LittleEndian.Uint64(b))
	if binary.LittleEndian.Uint64(b[8:]) == 1 {
		return PhaseConvert, done, true
	}
	return PhaseFetch, done, true
}
