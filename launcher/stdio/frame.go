// Package stdio carries the input and output of a step's ranks between the supervisors
// of its nodes and clients: frames with the rank, and the place in its stream, of what
// they carry; and a bounded file in which a supervisor keeps output until clients have it.
//
// First use: a client sends a line of JSON with a [Hello], and then reads frames by
// [NewReader] and writes them by [Write]; a supervisor makes a [Spool] and serves each
// connection from a [Cursor].
//
// A Spool may be used by any number of goroutines, a Reader and a Cursor by one at a time.
// A client that reads gets everything, however slowly it does, and ranks wait for it; they do
// not wait for one that is not there or has stopped reading: then the oldest is dropped, and
// who comes too late is told how much that was. The package starts nothing and opens no file.
package stdio

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Type says what a frame is.
type Type uint8

// The frames of clients.
const (
	Stdin    Type = 1 // for the ranks that read it; Offset is where it is in the whole input
	StdinEOF Type = 2 // the input ends at Offset
	Signal   Type = 3 // to all ranks of the node; Offset is its number
	WinSize  Type = 4 // of the terminal: rows and columns, two bytes each
	Ack      Type = 5 // the end was handled: the step may go
	Reading  Type = 6 // output was handed on since this was said last: what is not taken will be
)

// The frames of supervisors.
const (
	Stdout   Type = 16 // of Rank; Offset is where it is in the rank's stream
	Stderr   Type = 17
	RankExit Type = 18 // job.RankEnd as JSON; all that is had of the rank's output was before it
	StepEnd  Type = 19 // job.StepEnd as JSON; the last frame
	Gap      Type = 20 // what is lost of a stream, see [Lost]
	Taken    Type = 21 // Offset bytes of the input were taken
)

const (
	// HeaderSize is the length of a frame before its payload: type (1), rank (4), offset
	// (8), length of the payload (4), little endian.
	HeaderSize = 17
	// MaxData bounds a payload.
	MaxData = 1 << 20
	// Window is how many bytes of input a client may send beyond those that were taken.
	Window = 256 << 10
)

// Frame is a frame.
type Frame struct {
	Type   Type
	Rank   uint32
	Offset uint64
	Data   []byte
}

// Hello is what a client asks for, in the first line of a connection.
type Hello struct {
	Ranks   []int    `json:"ranks,omitempty"` // only these; none: all
	Offsets []Offset `json:"offsets,omitempty"`
	// Primary is the client whose step it is: its input, signals and acknowledgement
	// count.
	Primary bool `json:"primary,omitempty"`
	// Follow goes on until the end of the step; else all that is there is sent, and the
	// connection ends.
	Follow bool `json:"follow,omitempty"`
}

// Exec is what a client asks for that runs a further program where a rank is, in the first
// line of another connection. The frames of that are those of the program alone, and
// carry the rank's number; the last is a RankExit.
type Exec struct {
	Rank     int      `json:"rank"`
	Args     [][]byte `json:"args"`
	Environ  [][]byte `json:"environ,omitempty"` // NAME=VALUE, over what the rank has
	Cwd      []byte   `json:"cwd,omitempty"`     // empty: where the ranks start
	Terminal bool     `json:"terminal,omitempty"`
}

// Offset is how much of a stream a client has.
type Offset struct {
	Rank   int    `json:"rank"`
	Stream Type   `json:"stream"` // Stdout or Stderr
	Offset uint64 `json:"offset"`
}

// Append appends a frame as it travels.
func Append(b []byte, f Frame) []byte {
	b = append(b, byte(f.Type))
	b = binary.LittleEndian.AppendUint32(b, f.Rank)
	b = binary.LittleEndian.AppendUint64(b, f.Offset)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Data)))
	return append(b, f.Data...)
}

// Write writes a frame by one call of w's.
func Write(w io.Writer, f Frame) error {
	if len(f.Data) > MaxData {
		return fmt.Errorf("write frame: %d bytes, at most %d", len(f.Data), MaxData)
	}
	_, err := w.Write(Append(make([]byte, 0, HeaderSize+len(f.Data)), f))
	return err
}

// parseHeader reads a header without its payload, and returns how long that is.
func parseHeader(b []byte) (Frame, int) {
	return Frame{
		Type: Type(b[0]), Rank: binary.LittleEndian.Uint32(b[1:]), Offset: binary.LittleEndian.Uint64(b[5:]),
	}, int(binary.LittleEndian.Uint32(b[13:]))
}

// Reader reads frames.
type Reader struct {
	r    *bufio.Reader
	head [HeaderSize]byte
	data []byte
}

// NewReader makes a Reader. It may read ahead.
func NewReader(r io.Reader) *Reader {
	if b, ok := r.(*bufio.Reader); ok {
		return &Reader{r: b}
	}
	return &Reader{r: bufio.NewReaderSize(r, 32<<10)}
}

// Next reads a frame, whose Data is valid until the next call. The error is io.EOF at the
// end, and io.ErrUnexpectedEOF within a frame.
func (r *Reader) Next() (Frame, error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return Frame{}, err
	}
	f, n := parseHeader(r.head[:])
	if n > MaxData {
		return Frame{}, fmt.Errorf("read frame: %d bytes, at most %d", n, MaxData)
	}
	if cap(r.data) < n {
		r.data = make([]byte, n)
	}
	f.Data = r.data[:n]
	if _, err := io.ReadFull(r.r, f.Data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// Reason is why output is lost.
type Reason uint8

// The reasons.
const (
	NotRead  Reason = iota // it came faster than it was read
	NotKept                // its node could not write it down, and it was not read at once
	NotThere               // its node does not have it any more
)

// NewGap makes the frame that says that count bytes from offset on are lost.
func NewGap(rank uint32, stream Type, offset, count uint64, why Reason) Frame {
	data := append(binary.LittleEndian.AppendUint64([]byte{byte(stream)}, count), byte(why))
	return Frame{Type: Gap, Rank: rank, Offset: offset, Data: data}
}

// Lost says of which stream a frame of type Gap is, how many bytes are lost, and why.
func (f Frame) Lost() (stream Type, count uint64, why Reason, err error) {
	if f.Type != Gap || len(f.Data) != 10 || Type(f.Data[0]) != Stdout && Type(f.Data[0]) != Stderr {
		return 0, 0, 0, fmt.Errorf("read gap: a frame of type %d with %d bytes is none", f.Type, len(f.Data))
	}
	return Type(f.Data[0]), binary.LittleEndian.Uint64(f.Data[1:]), Reason(f.Data[9]), nil
}

// NewWinSize makes the frame that says how large the client's terminal is.
func NewWinSize(rows, columns uint16) Frame {
	return Frame{Type: WinSize, Data: binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, rows), columns)}
}

// Size reads a frame of type WinSize.
func (f Frame) Size() (rows, columns uint16, err error) {
	if f.Type != WinSize || len(f.Data) != 4 {
		return 0, 0, fmt.Errorf("read size of terminal: a frame of type %d with %d bytes is none", f.Type, len(f.Data))
	}
	return binary.LittleEndian.Uint16(f.Data), binary.LittleEndian.Uint16(f.Data[2:]), nil
}
