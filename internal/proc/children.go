package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Children are the children of a process, by all of its threads: those that it started, and
// those that the kernel gave it. It is empty where the process has ended.
func Children(pid int) []int {
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(tasks, e.Name(), "children"))
		if err != nil {
			continue // a thread that has ended
		}
		for text := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(text); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}
