package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// insideVerb is the argument of this program in a container, of which it is all that runs
// without a C library.
const insideVerb = "inside"

// inside does what an argument says: nothing ("true"), list the driver's device nodes
// ("nodes"), or say "up" and wait for the end of the input ("wait").
func inside(args []string) int {
	switch strings.Join(args, " ") {
	case "true":
	case "nodes":
		for _, pattern := range []string{"/dev/nvidia*", "/dev/nvidia-caps/*"} {
			nodes, _ := filepath.Glob(pattern)
			slices.Sort(nodes)
			for _, node := range nodes {
				if st, err := os.Stat(node); err == nil && !st.IsDir() {
					fmt.Println(node)
				}
			}
		}
	case "wait":
		nodes, _ := filepath.Glob("/dev/nvidia[0-9]*")
		fmt.Println(strings.Join(nodes, " "))
		_, _ = io.Copy(io.Discard, os.Stdin)
	default:
		fmt.Fprintln(os.Stderr, "what?", args)
		return 2
	}
	return 0
}
