package spec

import (
	"maps"
	"slices"
	"strings"
)

// didYouMean is a hint for a word that is none of names: those that are most like
// it, else all.
func didYouMean(typed string, names []string) string {
	best := max(1, min(3, len(typed)/3))
	var near []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		d := distance(strings.ToLower(typed), name)
		if d < best {
			best, near = d, nil
		}
		if d == best {
			near = append(near, name)
		}
	}
	if len(near) > 0 {
		return "did you mean: " + strings.Join(near, " or ")
	}
	return "one of: " + strings.Join(names, " ")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// distance is the number of letters to insert, remove or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			row[j+1] = min(above, row[j]) + 1
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], diagonal)
			} else {
				row[j+1] = min(row[j+1], diagonal+1)
			}
			diagonal = above
		}
	}
	return row[len(b)]
}
