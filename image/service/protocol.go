package service

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

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// Limits of a frame. Requests are names and credentials; the largest answers are an
// image's configuration and a list of images.
const (
	maxRequest = 64 << 10
	maxReply   = 16 << 20
	maxRights  = 64 // descriptors with one frame; the kernel takes 253
	maxFiles   = 4096
)

// version is of the protocol: both ends are of one package, but a server may be older
// than its clients for as long as it runs.
const version = 1

// Request asks for an image.
type Request struct {
	Reference string `json:"reference"` // canonical, of a registry
	Platform  string `json:"platform"`  // "" is the node's
	// Pull is "missing", where what the store has is asked about by its digest; "always",
	// where the registry says what the reference means now; or "never".
	Pull       string `json:"pull,omitempty"`
	MaxSize    int64  `json:"max_size,omitempty"`    // of its layers, bytes; 0: what the server says
	MaxEntries int64  `json:"max_entries,omitempty"` // of a layer
	MaxContent int64  `json:"max_content,omitempty"` // of a layer, bytes
	Rate       int64  `json:"rate,omitempty"`        // bytes a second; 0: no limit
	Files      bool   `json:"files,omitempty"`       // hand them over
}

// credentialAnswer answers a find.
type credentialAnswer struct {
	Username      string     `json:"username,omitempty"`
	Password      string     `json:"password,omitempty"`
	IdentityToken string     `json:"identity_token,omitempty"`
	RegistryToken string     `json:"registry_token,omitempty"`
	Source        string     `json:"source,omitempty"`
	Looked        []string   `json:"looked,omitempty"`
	Error         *wireFault `json:"error,omitempty"`
}

// request is a frame from a client: one of these.
type request struct {
	Version    int               `json:"version,omitempty"`
	Image      *Request          `json:"image,omitempty"`
	Hold       *holding          `json:"hold,omitempty"`
	Admin      *Admin            `json:"admin,omitempty"`
	Credential *credentialAnswer `json:"credential,omitempty"`
	Taken      bool              `json:"taken,omitempty"` // all files have arrived
}

// find asks the client for its credential.
type find struct {
	Host       string `json:"host"`
	Repository string `json:"repository"`
	User       string `json:"user,omitempty"`
}

// opened is the image that was asked for. Its files come with the next frames.
type opened struct {
	Image  image.Image `json:"image"`
	Config []byte      `json:"config,omitempty"`
	Files  int         `json:"files,omitempty"`
}

// reply is a frame from the server: one of these.
type reply struct {
	Progress *image.Progress `json:"progress,omitempty"`
	Find     *find           `json:"find,omitempty"`
	Opened   *opened         `json:"opened,omitempty"`
	Rights   int             `json:"rights,omitempty"` // so many files come with this frame
	Done     bool            `json:"done,omitempty"`
	Admin    *AdminResult    `json:"admin,omitempty"`
	Error    *wireFault      `json:"error,omitempty"`
}

// wireFault is a fault.Error that was made elsewhere.
type wireFault struct {
	What  string `json:"what"`
	Cause string `json:"cause,omitempty"`
	Hint  string `json:"hint,omitempty"`
	Code  int    `json:"code,omitempty"`
	Kind  string `json:"kind,omitempty"` // of known
}

// known are the errors that callers look for.
func known() map[string]error {
	return map[string]error{"not in store": image.ErrNotFound, "not found": registry.ErrNotFound, "denied": registry.ErrDenied}
}

func toWire(err error) *wireFault {
	w := &wireFault{What: err.Error(), Code: fault.Code(err)}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		w.Cause, w.Hint = f.Cause, f.Hint
	}
	for kind, k := range known() {
		if errors.Is(err, k) {
			w.Kind = kind
		}
	}
	return w
}

// fault is the error of the other end.
func (w *wireFault) fault() error {
	return &fault.Error{What: &remoteError{w.What, known()[w.Kind]}, Cause: w.Cause, Hint: w.Hint, Code: w.Code}
}

type remoteError struct {
	text string
	kind error // nil: none that callers look for
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// send sends a frame.
func send(c *net.UnixConn, v any, max int, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > max {
		return fmt.Errorf("send a frame of %d bytes: the limit is %d", len(b), max)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for n, f := range files {
			fds[n] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	frame := append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
	n, _, err := c.WriteMsgUnix(frame[:4], oob, nil)
	if err == nil {
		_, err = c.Write(frame[n:])
	}
	return err
}

// readFrame reads a frame without descriptors: the kernel closes those that come along.
func readFrame(r io.Reader, v any, max int) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	return readBody(r, head, v, max)
}

func readBody(r io.Reader, head [4]byte, v any, max int) error {
	size := binary.LittleEndian.Uint32(head[:])
	if int64(size) > int64(max) {
		return fmt.Errorf("read a frame of %d bytes: the limit is %d", size, max)
	}
	// Not made at once: who claims much is to send it first.
	b, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err == nil && len(b) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read a frame: %w", err)
	}
	return nil
}

// receive reads a frame with its descriptors, which are closed when a program is executed.
func receive(c *net.UnixConn, v any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
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
		return files, fmt.Errorf("receive descriptors: %w", syscall.EMFILE)
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	return files, readBody(c, head, v, maxReply)
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
			files = append(files, os.NewFile(uintptr(fd), "file of the node's image store"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for f := range slices.Values(files) {
		_ = f.Close()
	}
}
