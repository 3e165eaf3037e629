package fault

import "strings"

// Nearest returns the names a person may have meant by typed: those it is the
// beginning of, else those at the smallest edit distance, if that is small.
func Nearest(typed string, names []string) []string {
	var begun, near []string
	best := max(1, min(3, len(typed)/3))
	for _, name := range names {
		if len(typed) > 1 && strings.HasPrefix(name, typed) {
			begun = append(begun, name)
		}
		switch d := editDistance(typed, name); {
		case d < best:
			best, near = d, []string{name}
		case d == best:
			near = append(near, name)
		}
	}
	if len(begun) > 0 {
		return begun
	}
	return near
}

// editDistance counts the letters to insert, remove, replace or swap with their
// neighbour to make b of a.
func editDistance(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, row = prev, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
