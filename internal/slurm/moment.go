package slurm

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// ParseMoment reads a moment as --begin, --deadline and the queries have it: HH:MM[:SS]
// with AM or PM, MMDD[YY], MM/DD[/YY], MM.DD[.YY], YYYY-MM-DD[THH:MM[:SS]], today,
// tomorrow, midnight, noon, elevenses, fika, teatime, now, and now plus or minus a
// COUNT[UNIT] of seconds, minutes, hours, days or weeks. What is given without a date is
// the next such time after now. Zone is now's.
func ParseMoment(text string, now time.Time) (job.Time, error) {
	at, pos, err := parseMoment(text, now)
	if err != nil {
		return 0, &Refusal{Lines: []string{badMoment(pos, text)}, Plain: true, Code: badOption}
	}
	return at, nil
}

// badMoment is what Slurm says of a text that is no moment.
func badMoment(pos int, text string) string {
	return fmt.Sprintf("Invalid time specification (pos=%d): %s", pos, text)
}

// parseMoment says in pos how far it understood the text.
func parseMoment(text string, now time.Time) (at job.Time, pos int, err error) {
	bad := &SyntaxError{Key: "time", Value: text, Want: "a time as 16:30, 2026-03-01T08:00, now+1hour or tomorrow"}
	if t, pos, ok := relative(text, now); ok {
		return job.Time(t.UnixMilli()), 0, nil
	} else if pos > 0 {
		return 0, pos, bad
	}
	m := moment{now: now, hour: -1}
	rest := text
	for rest = strings.TrimLeft(rest, " \t"); rest != ""; rest = strings.TrimLeft(rest, " \t") {
		n := m.take(rest)
		if n == 0 {
			return 0, len(text) - len(rest) + m.wrong, bad
		}
		rest = rest[n:]
		if rest != "" && (rest[0] == 'T' || rest[0] == 't' || rest[0] == '-') && m.dated && m.hour < 0 {
			rest = rest[1:]
		}
	}
	if !m.dated && m.hour < 0 {
		return 0, 0, bad
	}
	return job.Time(m.time().UnixMilli()), 0, nil
}

// relative reads "now" and what is counted from it, and seconds since 1970 behind "uts".
// Where it is not ok, a pos above 0 is how far that was understood.
func relative(text string, now time.Time) (t time.Time, pos int, ok bool) {
	rest, ok := strings.CutPrefix(strings.ToLower(text), "now")
	if !ok {
		if n, err := strconv.ParseInt(strings.TrimPrefix(text, "uts"), 10, 64); err == nil && strings.HasPrefix(text, "uts") {
			return time.Unix(n, 0), 0, true
		}
		return now, 0, false
	}
	rest = strings.ReplaceAll(rest, " ", "")
	if rest == "" {
		return now, 0, true
	}
	pos = len("now")
	sign := 1
	switch rest[0] {
	case '+':
	case '-':
		sign = -1
	default:
		return now, pos, false
	}
	digits := leadingDigits(rest[1:])
	n, err := strconv.Atoi(digits)
	if err != nil || n > mostAhead {
		return now, pos, false
	}
	unit, ok := unitOf(rest[1+len(digits):])
	if !ok || n > mostAhead/int(unit/time.Second) {
		return now, pos + len(digits), false
	}
	return now.Add(time.Duration(sign*n) * unit), 0, true
}

// mostAhead bounds what is counted from now: 100 years, in seconds, which a time.Duration holds.
const mostAhead = 100 * 366 * 24 * 3600

// unitOf reads a unit by any beginning of its name, as Slurm does: minutes need "mi".
func unitOf(text string) (time.Duration, bool) {
	if text == "" {
		return time.Second, true
	}
	for _, u := range []struct {
		name string
		span time.Duration
	}{{"seconds", time.Second}, {"minutes", time.Minute}, {"hours", time.Hour}, {"days", 24 * time.Hour}, {"weeks", 7 * 24 * time.Hour}} {
		if strings.HasPrefix(u.name, text) {
			return u.span, true
		}
	}
	return 0, false
}

// moment collects the parts of a moment.
type moment struct {
	now              time.Time
	hour, min, sec   int // hour -1: not given
	year, month, day int
	dated            bool
	wrong            int // how far the part was understood that take refused
}

// take reads one part at the beginning of text and returns its length, or 0.
func (m *moment) take(text string) int {
	word := text
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		word = text[:i]
	}
	lower := strings.ToLower(word)
	words := []struct {
		name      string
		hour, min int
	}{{"midnight", 0, 0}, {"noon", 12, 0}, {"elevenses", 11, 0}, {"fika", 15, 0}, {"teatime", 16, 0}}
	for _, w := range words {
		if lower == w.name {
			m.hour, m.min, m.sec = w.hour, w.min, 0
			return len(word)
		}
	}
	switch lower {
	case "today", "tomorrow":
		y, mo, d := m.now.Date()
		if lower == "tomorrow" {
			d++
		}
		m.year, m.month, m.day, m.dated = y, int(mo), d, true
		return len(word)
	case "am", "pm":
		if m.hour < 1 || m.hour > 12 {
			return 0
		}
		m.hour %= 12
		if lower == "pm" {
			m.hour += 12
		}
		return len(word)
	}
	if n := m.date(word); n > 0 {
		return n
	}
	return m.clock(word)
}

// date reads YYYY-MM-DD, MM/DD[/YY], MM.DD[.YY], MMDDYY or MMDD at the beginning of word.
func (m *moment) date(word string) int {
	end := strings.IndexFunc(word, func(r rune) bool { return !strings.ContainsRune("0123456789-/.", r) })
	if end < 0 {
		end = len(word)
	}
	text := word[:end]
	if i := strings.IndexByte(text, '-'); i > 0 && strings.ContainsAny(text[:i], "/.") {
		text, end = text[:i], i // a time follows
	}
	y, mo, d := m.now.Year(), 0, 0
	iso, slashes, dots := decimals(text[:min(10, len(text))], "-"), decimals(text, "/"), decimals(text, ".")
	switch {
	case len(iso) == 3 && len(text) >= 10 && text[4] == '-':
		y, mo, d, end = iso[0], iso[1], iso[2], 10
	case len(slashes) == 3:
		mo, d, y = slashes[0], slashes[1], slashes[2]
	case len(slashes) == 2:
		mo, d = slashes[0], slashes[1]
	case len(dots) == 3:
		mo, d, y = dots[0], dots[1], dots[2]
	case len(dots) == 2:
		mo, d = dots[0], dots[1]
	case len(dots) == 1 && len(text) == 6 && end == len(word):
		mo, d, y = dots[0]/10000, dots[0]/100%100, dots[0]%100
	case len(dots) == 1 && len(text) == 4 && end == len(word):
		mo, d = dots[0]/100, dots[0]%100
	default:
		return 0
	}
	if y < 100 {
		y += 2000
	}
	if mo < 1 || mo > 12 || d < 1 || d > 31 {
		if len(iso) == 3 {
			m.wrong = len("YYYY-")
			if mo >= 1 && mo <= 12 {
				m.wrong = len("YYYY-MM-")
			}
		}
		return 0
	}
	m.year, m.month, m.day, m.dated = y, mo, d, true
	return end
}

// clock reads H:MM[:SS] with am or pm behind. Minutes and seconds have two digits.
func (m *moment) clock(word string) int {
	end := strings.IndexFunc(word, func(r rune) bool { return !strings.ContainsRune("0123456789:", r) })
	if end < 0 {
		end = len(word)
	}
	text := word[:end]
	parts := decimals(text, ":")
	if len(parts) < 2 || m.hour >= 0 {
		return 0
	}
	at := 0
	for i, part := range strings.Split(text, ":") {
		if i > 0 && (len(part) != 2 || i > 2 || parts[i] > 59) {
			m.wrong = at + min(len(part), 1)
			if i > 2 || len(part) == 2 {
				m.wrong = at
			}
			return 0
		}
		at += len(part) + 1
	}
	h, mi, s := parts[0], parts[1], 0
	if len(parts) == 3 {
		s = parts[2]
	}
	if h > 24 {
		return 0
	}
	m.hour, m.min, m.sec = h, mi, s
	if suffix := strings.ToLower(word[end:]); suffix == "am" || suffix == "pm" {
		return end + m.take(word[end:])
	}
	return end
}

// decimals reads numbers between separators; nil if there is anything else.
func decimals(text, separator string) []int {
	var all []int
	for part := range strings.SplitSeq(text, separator) {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil
		}
		all = append(all, int(n))
	}
	return all
}

// time is the moment. Without a date it is the next such time.
func (m *moment) time() time.Time {
	hour, year, month, day := max(m.hour, 0), m.year, m.month, m.day
	if !m.dated {
		y, mo, d := m.now.Date()
		year, month, day = y, int(mo), d
	}
	t := time.Date(year, time.Month(month), day, hour, m.min, m.sec, 0, m.now.Location())
	if !m.dated && !t.After(m.now) {
		t = time.Date(year, time.Month(month), day+1, hour, m.min, m.sec, 0, m.now.Location())
	}
	return t
}
