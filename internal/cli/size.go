package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// ParseSize reads a number of bytes: 500M, 1.5G, 2GB. Units of one letter, large or small,
// and those with an i are powers of 1024, as in Slurm; kB, MB, GB are powers of 1000.
func ParseSize(text string) (int64, error) {
	bad := fault.Usage(fmt.Errorf("size %q: want a number of bytes with or without unit", text), "for example 500M or 1.5G")
	digits := strings.TrimRight(text, "KMGTPEkmgtiBb ")
	unit := strings.ToUpper(strings.TrimSpace(text[len(digits):]))
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 || n != n || strings.ContainsAny(digits, "eExXpP_") {
		return 0, bad
	}
	factor := 1.0
	if unit != "" && unit != "B" {
		power := strings.IndexByte("KMGTPE", unit[0]) + 1
		base, ok := map[string]float64{"": 1024, "IB": 1024, "B": 1000}[unit[1:]]
		if power == 0 || !ok {
			return 0, bad
		}
		for range power {
			factor *= base
		}
	}
	if n *= factor; n >= 1<<63 {
		return 0, bad
	}
	return int64(n), nil
}
