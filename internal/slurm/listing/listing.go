// Package listing writes what the controller answers as Slurm's commands write it: squeue,
// sinfo, sacct, sstat, sdiag, and the records of "scontrol show". It knows their fields, formats,
// filters and headings, and Slurm 22.05's texts for values.
//
// First use: a [View], and [ParseQueue], [ParseInfo] or [ParseAcct] of a command line,
// whose results print what package api's client fetched. It fetches nothing itself, asks
// no clock, and may be used by any number of goroutines.
package listing

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// View is who looks, and how.
type View struct {
	Now        job.Time       // the controller's clock
	Zone       *time.Location // in which times are shown
	TimeFormat string         // SLURM_TIME_FORMAT: standard, relative, or one of strftime
	BitstrLen  int            // SLURM_BITSTR_LEN: the longest list of array tasks; 0: no limit
	NoConvert  bool           // sizes stay MiB
	Unit       byte           // sacct --units: all sizes in this one; 0: each in its own
	Cluster    string
	User       func(uid uint32) string // names of ids; as the host knows them
	Group      func(gid uint32) string
}

// NewView makes a View from the environment.
func NewView(getenv func(string) string, user, group func(uint32) string) *View {
	v := &View{Zone: time.Local, TimeFormat: getenv("SLURM_TIME_FORMAT"), BitstrLen: 64, User: user, Group: group}
	if n, err := strconv.Atoi(getenv("SLURM_BITSTR_LEN")); err == nil && n >= 0 {
		v.BitstrLen = n
	}
	return v
}

// or is text, or what Slurm prints for none.
func or(text, none string) string {
	if text == "" {
		return none
	}
	return text
}

func null(text string) string { return or(text, "(null)") }

// span is elapsed time as squeue has it: [D-[HH:]]M:SS, with hours only as needed.
func span(d job.Duration) string {
	if d < 0 {
		return "INVALID"
	}
	s := int64(d / job.Second)
	days, hours, minutes, seconds := s/86400, s/3600%24, s/60%60, s%60
	switch {
	case s == 0:
		return "0:00"
	case days > 0:
		return fmt.Sprintf("%d-%02d:%02d:%02d", days, hours, minutes, seconds)
	case hours > 0:
		return fmt.Sprintf("%d:%02d:%02d", hours, minutes, seconds)
	}
	return fmt.Sprintf("%d:%02d", minutes, seconds)
}

// limited is a time limit as scontrol and sacct have it; a job without one has 0.
func limited(d job.Duration) string {
	if d == 0 {
		d = job.Forever
	}
	return slurm.FormatTime(d)
}

// when is a moment, or none if it is not known.
func (v *View) when(t job.Time, none string) string {
	if t == 0 || t == job.Never {
		return none
	}
	at := time.UnixMilli(int64(t)).In(v.Zone)
	switch v.TimeFormat {
	case "", "standard":
		return at.Format("2006-01-02T15:04:05")
	case "relative":
		return relative(at, time.UnixMilli(int64(v.Now)).In(v.Zone))
	}
	return strftime(v.TimeFormat, at)
}

// Date is the line that long reports begin with.
func (v *View) Date() string {
	return time.UnixMilli(int64(v.Now)).In(v.Zone).Format("Mon Jan 02 15:04:05 2006")
}

// relative is Slurm's short form of a moment.
func relative(at, now time.Time) string {
	day := func(t time.Time) int64 {
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC).Unix() / 86400
	}
	switch days := day(at) - day(now); {
	case at.Year() != now.Year():
		return at.Format("2 Jan 2006")
	case days == 0:
		return at.Format("15:04:05")
	case days == -1:
		return at.Format("Ystday 15:04")
	case days == 1:
		return at.Format("Tomorr 15:04")
	case days > 0 && days < 7:
		return at.Format("Mon 15:04")
	}
	return at.Format("2 Jan 15:04")
}

// strftime knows the conversions that make sense for a moment.
func strftime(format string, at time.Time) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'c': "Mon Jan _2 15:04:05 2006", 'd': "02", 'D': "01/02/06",
		'e': "_2", 'F': "2006-01-02", 'h': "Jan", 'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'r': "03:04:05 PM",
		'R': "15:04", 'S': "05", 'T': "15:04:05", 'x': "01/02/06", 'X': "15:04:05", 'y': "06", 'Y': "2006", 'z': "-0700", 'Z': "MST",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout, ok := layouts[format[i]]; {
		case ok:
			b.WriteString(at.Format(layout))
		case format[i] == 's':
			b.WriteString(strconv.FormatInt(at.Unix(), 10))
		case format[i] == 'n':
			b.WriteByte('\n')
		case format[i] == 't':
			b.WriteByte('\t')
		case format[i] == '%':
			b.WriteByte('%')
		default:
			b.WriteString(format[i-1 : i+1])
		}
	}
	return b.String()
}

// memory is MiB with Slurm's unit: 900G, 62.50G, 1500M.
func (v *View) memory(mib int64) string { return v.size(mib<<20, 2) }

// size is a number of bytes, multiples of 1024^unit, in a larger unit as long as no more
// than a half of one is left: 16000M, 62.50G.
func (v *View) size(bytes int64, unit int) string {
	switch {
	case bytes == 0:
		return "0"
	case v.Unit != 0:
		return inUnit(bytes, v.Unit)
	}
	const units = " KMGTPE"
	n := float64(bytes >> (10 * unit))
	for !v.NoConvert && n >= 1024 && int64(n)%512 == 0 && unit < len(units)-1 {
		n /= 1024
		unit++
	}
	text := strings.TrimSuffix(strconv.FormatFloat(n, 'f', 2, 64), ".00")
	return text + strings.TrimSpace(units[unit:unit+1])
}

// inUnit is a number of bytes in one unit.
func inUnit(bytes int64, unit byte) string {
	shift := max(0, strings.IndexByte("BKMGTP", unit))
	text := strconv.FormatFloat(float64(bytes)/float64(int64(1)<<(10*shift)), 'f', 2, 64)
	return strings.TrimSuffix(text, ".00") + string(unit)
}
