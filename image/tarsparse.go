package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Files with holes are written as GNU tar does with --sparse-version=1.0, which
// archive/tar reads and does not write: a /var/log/lastlog of a cluster has some
// hundred GiB, of which some KiB are data.

// extent is a run of data within a file.
type extent struct{ off, len int64 }

func total(data []extent) (n int64) {
	for _, e := range data {
		n += e.len
	}
	return n
}

const (
	minHole    = 64 << 10 // smaller ones are written as zeros
	maxExtents = 4096     // the map must not become large; what is behind is written whole
)

// extentsOf returns the runs of data of a file that has holes worth the map, else nil.
func (s *tarStream) extentsOf(n *rootNode, c content) ([]extent, error) {
	if s.again {
		return s.sparse[n.name], nil
	}
	if c.extents == nil {
		return nil, nil
	}
	data, err := c.extents()
	if err != nil {
		return nil, err
	}
	if data = joinExtents(data, n.size); data != nil {
		s.sparse[n.name] = data
	}
	return data, nil
}

// joinExtents leaves out small holes. It returns nil where none is left.
func joinExtents(data []extent, size int64) []extent {
	joined := []extent{}
	for _, e := range data {
		e.len = min(e.len, size-e.off)
		last := len(joined) - 1
		switch {
		case e.len <= 0:
		case last < 0 && e.off < minHole:
			joined = append(joined, extent{0, e.off + e.len})
		case last >= 0 && (last == maxExtents-1 || e.off-joined[last].off-joined[last].len < minHole):
			joined[last].len = e.off + e.len - joined[last].off
		default:
			joined = append(joined, e)
		}
	}
	if size-total(joined) < minHole {
		return nil
	}
	return joined
}

// sparseHeader writes all that is before the data of a file with holes.
func (s *tarStream) sparseHeader(h *tar.Header, data []extent) error {
	if err := s.tar.Flush(); err != nil { // the padding of the file before
		return err
	}
	list := slices.Concat(data, []extent{{h.Size, 0}}) // where the file ends, as GNU tar has it
	text := []byte(strconv.Itoa(len(list)) + "\n")
	for _, e := range list {
		text = fmt.Appendf(text, "%d\n%d\n", e.off, e.len)
	}
	text = append(text, make([]byte, -len(text)&511)...)
	stored := int64(len(text)) + total(data)

	records := maps.Clone(h.PAXRecords)
	records["GNU.sparse.major"], records["GNU.sparse.minor"] = "1", "0"
	records["GNU.sparse.name"], records["GNU.sparse.realsize"] = h.Name, strconv.FormatInt(h.Size, 10)
	records["mtime"] = paxTime(h.ModTime.Unix(), h.ModTime.Nanosecond())
	for key, value := range map[string]int64{"uid": int64(h.Uid), "gid": int64(h.Gid), "size": stored} {
		if value > maxOctal(key) {
			records[key] = strconv.FormatInt(value, 10)
		}
	}
	var pax bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(records)) {
		pax.WriteString(paxRecord(key, records[key]))
	}
	head := ustar('x', "PaxHeaders/file", 0o644, 0, 0, int64(pax.Len()))
	pax.Write(make([]byte, -pax.Len()&511))
	file := ustar('0', "GNUSparseFile.0/file", h.Mode, h.Uid, h.Gid, stored)
	for _, b := range [][]byte{head, pax.Bytes(), file, text} {
		if _, err := s.out.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// pad fills up the last block of n bytes.
func (s *tarStream) pad(n int64) error {
	_, err := s.out.Write(make([]byte, -n&511))
	return err
}

// maxOctal is the largest number that a field of a tar header has room for.
func maxOctal(field string) int64 {
	if field == "size" {
		return 1<<33 - 1
	}
	return 1<<21 - 1
}

// ustar is a header block (POSIX pax, "ustar Interchange Format"). What it has no
// room for is 0, and in a PAX record.
func ustar(typ byte, name string, mode int64, uid, gid int, size int64) []byte {
	b := make([]byte, 512)
	octal := func(at, digits int, n, most int64) {
		if n > most {
			n = 0
		}
		copy(b[at:], fmt.Sprintf("%0*o", digits, n))
	}
	copy(b, name)
	octal(100, 7, mode, maxOctal("mode"))
	octal(108, 7, int64(uid), maxOctal("uid"))
	octal(116, 7, int64(gid), maxOctal("gid"))
	octal(124, 11, size, maxOctal("size"))
	octal(136, 11, 0, 0)
	copy(b[148:], "        ")
	b[156] = typ
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// paxRecord is "LENGTH KEY=VALUE\n", where the length counts itself.
func paxRecord(key, value string) string {
	n := len(key) + len(value) + 3
	n += len(strconv.Itoa(n + len(strconv.Itoa(n))))
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// paxTime writes a time in decimal; a negative one counts down from 0.
func paxTime(sec int64, nsec int) string {
	sign := ""
	if sec < 0 {
		sign = "-"
		if sec = -sec; nsec > 0 {
			sec, nsec = sec-1, 1e9-nsec
		}
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%s%d.%09d", sign, sec, nsec), "0"), ".")
}
