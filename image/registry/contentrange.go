package registry

import (
	"strconv"
	"strings"
)

// contentRange is a value of Content-Range (RFC 9110, section 14.4).
type contentRange struct {
	first, last int64 // both -1 in the answer to a range that is not there
	size        int64 // of the whole; -1 if the server does not tell
}

// parseContentRange reads "bytes 0-99/200", "bytes 0-99/*" and "bytes */200".
func parseContentRange(s string) (contentRange, bool) {
	none := contentRange{}
	unit, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	span, total, ok := strings.Cut(strings.TrimSpace(rest), "/")
	if !ok || !strings.EqualFold(unit, "bytes") {
		return none, false
	}
	r := contentRange{-1, -1, -1}
	if total != "*" {
		if r.size, ok = number(total); !ok {
			return none, false
		}
	}
	if span == "*" {
		return r, r.size >= 0
	}
	first, last, _ := strings.Cut(span, "-")
	var ok1, ok2 bool
	r.first, ok1 = number(first)
	r.last, ok2 = number(last)
	return r, ok1 && ok2 && r.first <= r.last && (r.size < 0 || r.last < r.size)
}

// number reads digits and nothing else: ParseInt would take a sign.
func number(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}
