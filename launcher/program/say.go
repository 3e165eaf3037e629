package program

import (
	"bufio"
	"io"
	"strings"
)

// Bounds of what is logged of a program's output. It is read to its end all the same.
const (
	maxLines = 200
	maxLine  = 1 << 10
)

// listen logs what a program prints, and returns its last line.
func (r *Run) listen(out io.Reader, path string) (last string) {
	in := bufio.NewReaderSize(out, maxLine)
	for n := 0; ; {
		line, prefix, err := in.ReadLine()
		if err != nil {
			if n > maxLines {
				r.Log.Warn("what a program printed is not all logged", "program", string(r.Kind), "path", path, "lines", n)
			}
			return last
		}
		text := strings.TrimSpace(strings.ToValidUTF8(string(line), "?"))
		for prefix && err == nil { // the rest of a long one
			_, prefix, err = in.ReadLine()
		}
		if text == "" {
			continue
		}
		if n++; n <= maxLines {
			r.Log.Info("program says", "program", string(r.Kind), "path", path, "line", text)
		}
		last = text
	}
}
