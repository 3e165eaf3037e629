package step

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// What goes over the socket of a supervisor: messages of JSON, each behind its length
// in 4 bytes, little endian, with which descriptors may come.

// maxMessage bounds a message: the largest are environments, which execve(2) limits to
// a few MiB.
const maxMessage = 8 << 20

// execRequest asks for a process in the container. Its stdin, stdout and stderr come
// along, unless it gets a terminal. Arguments, variables and paths need not be text, so
// they are no strings of JSON.
type execRequest struct {
	Args     [][]byte `json:"argv"`
	Env      [][]byte `json:"environ,omitempty"` // over those of the container
	Own      *ownEnv  `json:"own,omitempty"`     // instead of Env
	Cwd      []byte   `json:"dir,omitempty"`     // "" is the container's
	Terminal bool     `json:"terminal,omitempty"`
	// Ignored are the signals that the process begins with ignored, as the caller does.
	Ignored []syscall.Signal `json:"ignored,omitempty"`
}

// ownEnv is of a process that has the environment it would have as the container's first:
// a rank, that another rank made the container for.
type ownEnv struct {
	Environ      [][]byte `json:"environ"` // of the caller
	Export       string   `json:"export,omitempty"`
	ContainerEnv []string `json:"container_env,omitempty"`
	Env          [][]byte `json:"env,omitempty"`
}

// blobs returns strings as what JSON does not change.
func blobs(texts []string) [][]byte {
	all := make([][]byte, len(texts))
	for n, t := range texts {
		all[n] = []byte(t)
	}
	return all
}

// texts is the contrary of blobs.
func texts(blobs [][]byte) []string {
	all := make([]string, len(blobs))
	for n, b := range blobs {
		all[n] = string(b)
	}
	return all
}

// execSignal goes to the process.
type execSignal struct {
	Signal int `json:"signal"`
}

// execReply tells, in this order: that the process runs, and the terminal's other end
// comes along; each time a signal stopped it; how it ended.
type execReply struct {
	PID     int        `json:"pid,omitempty"`
	Stopped int        `json:"stopped,omitempty"`
	Exit    *int       `json:"exit,omitempty"`
	Ended   bool       `json:"ended,omitempty"` // the container, before the process could start
	Error   *wireFault `json:"error,omitempty"`
}

// wireFault is a fault.Error that was made elsewhere.
type wireFault struct {
	What  string `json:"what"`
	Cause string `json:"cause,omitempty"`
	Hint  string `json:"hint,omitempty"`
	Code  int    `json:"code,omitempty"`
}

func toWire(err error) *wireFault {
	w := &wireFault{What: err.Error(), Code: fault.Code(err)}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		w.Cause, w.Hint = f.Cause, f.Hint
	}
	return w
}

func (w *wireFault) fault() error {
	return &fault.Error{What: errors.New(w.What), Cause: w.Cause, Hint: w.Hint, Code: w.Code}
}

func send(c *net.UnixConn, v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("send message of %d bytes: the limit is %d", len(b), maxMessage)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for n, f := range files {
			fds[n] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
	if _, _, err := c.WriteMsgUnix(head, oob, nil); err != nil {
		return err
	}
	_, err = c.Write(b)
	return err
}

// receive reads a message, and at most max descriptors with it, which are closed when
// a program is executed.
func receive(c *net.UnixConn, v any, max int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*max))
	n, oobn, flags, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if files, err = rights(oob[:oobn]); err != nil {
		return files, err
	}
	if n == 0 {
		return files, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, errors.New("receive message: too many descriptors")
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > maxMessage {
		return files, fmt.Errorf("receive message of %d bytes: the limit is %d", size, maxMessage)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c, b); err != nil {
		return files, err
	}
	return files, json.Unmarshal(b, v)
}

func rights(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for f := range slices.Values(files) {
		_ = f.Close()
	}
}
