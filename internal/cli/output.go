package cli

import (
	"bufio"
	"io"
)

// output buffers a program's standard output and remembers the first error of
// writing it, so that no verb, and no cobra function that drops errors, can
// report success with its result lost.
type output struct {
	buf *bufio.Writer
	err error
}

func newOutput(w io.Writer) *output {
	return &output{buf: bufio.NewWriterSize(w, 64<<10)}
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.buf.Write(p)
	o.keep(err)
	return n, err
}

// Flush writes what is buffered and returns the first error of all writes. Verbs
// call it whose results are read while they come.
func (o *output) Flush() error {
	o.keep(o.buf.Flush())
	return o.err
}

func (o *output) keep(err error) {
	if o.err == nil {
		o.err = err
	}
}
