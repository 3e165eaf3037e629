package slurm

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

const wantTime = "minutes, or one of M:S, H:M:S, D-H, D-H:M, D-H:M:S, or UNLIMITED"

// ParseTime reads a time limit in one of Slurm's forms: M, M:S, H:M:S, D-H, D-H:M,
// D-H:M:S. No part has an upper limit of its own, so 0:3600 is an hour. 0, -1, INFINITE
// and UNLIMITED are [job.Forever]. Slurm keeps whole minutes; see [Minutes].
func ParseTime(text string) (job.Duration, error) {
	bad := &SyntaxError{Key: "time", Value: text, Want: wantTime}
	switch strings.ToUpper(text) {
	case "-1", "0", "INFINITE", "UNLIMITED":
		return job.Forever, nil
	}
	days, rest, hasDays := strings.Cut(text, "-")
	if !hasDays {
		days, rest = "0", text
	}
	parts := strings.Split(rest, ":")
	var units []int64
	switch {
	case len(parts) > 3:
		return 0, bad
	case hasDays || len(parts) == 3:
		units = []int64{3600, 60, 1}
	default:
		units = []int64{60, 1}
	}
	total, err := parseNumber(days)
	if err != nil || total > math.MaxInt32 {
		return 0, bad
	}
	seconds := int64(total) * 86400
	for i, part := range parts {
		n, err := parseNumber(part)
		if err != nil || n > math.MaxInt32 {
			return 0, bad
		}
		seconds += int64(n) * units[i]
	}
	return job.Duration(seconds) * job.Second, nil
}

// Minutes rounds a limit up to whole minutes, in which Slurm keeps it.
func Minutes(d job.Duration) job.Duration {
	if rest := d % job.Minute; rest > 0 && d < job.Forever-job.Minute {
		return d + job.Minute - rest
	}
	return d
}

// FormatTime writes a span as Slurm does: [D-]HH:MM:SS, UNLIMITED if it has no end.
// Fractions of a second are left out.
func FormatTime(d job.Duration) string {
	if d == job.Forever {
		return "UNLIMITED"
	}
	sign := ""
	if d < 0 {
		sign, d = "-", max(-d, 0)
	}
	s := int64(d / job.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if s >= 86400 {
		text = strconv.FormatInt(s/86400, 10) + "-" + text
	}
	return sign + text
}

const wantSize = "a whole number with K, M, G or T (without one: MiB)"

// ParseSize reads a size of memory and returns MiB, rounded up: 900G, 2048000 (MiB),
// 512MB. The units are powers of 1024.
func ParseSize(text string) (int64, error) {
	bad := &SyntaxError{Key: "size", Value: text, Want: wantSize}
	digits := strings.TrimRight(text, "KMGTBkmgtb")
	n, err := parseNumber(digits)
	if err != nil {
		return 0, bad
	}
	shift := 0
	switch unit := strings.ToUpper(text[len(digits):]); unit {
	case "K", "KB":
		return int64(n+1023) >> 10, nil
	case "", "M", "MB":
	case "G", "GB":
		shift = 10
	case "T", "TB":
		shift = 20
	default:
		return 0, bad
	}
	if n > math.MaxInt64>>shift {
		return 0, bad
	}
	return int64(n << shift), nil
}

// parseCount reads a count with Slurm's units, K, M, G, T and P: powers of 1024.
func parseCount(text string) (int64, error) {
	digits := strings.TrimRight(text, "KMGTPkmgtp")
	n, err := parseNumber(digits)
	if err != nil || len(text)-len(digits) > 1 {
		return 0, strconv.ErrSyntax
	}
	shift := 0
	if unit := strings.ToUpper(text[len(digits):]); unit != "" {
		shift = 10 * (strings.Index("KMGTP", unit) + 1)
	}
	if n > math.MaxInt64>>shift {
		return 0, strconv.ErrRange
	}
	return int64(n << shift), nil
}
