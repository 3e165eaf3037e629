package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Variable chooses a cluster: a name of one that runs on this machine, unix:PATH or /PATH.
// Programs of a job have it set.
const Variable = "GANGWAY_CLUSTER"

// SystemDir is the run directory of clusters that are all users' of the machine. It is root's.
const SystemDir = "/var/spool/gangway"

// Found is a cluster that "gangway up" runs for this user, as it says so in the file
// clusters/NAME.json of the user's run directory.
type Found struct {
	Name   string `json:"name"`
	Socket string `json:"socket"` // unix:PATH, of the public API
	PID    int    `json:"pid"`    // of the process that runs it
	Start  uint64 `json:"start"`  // when that one started: field 22 of /proc/PID/stat
}

// Alive says whether the process that runs the cluster still does.
func (f *Found) Alive() bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(f.PID) + "/stat")
	if err != nil {
		return false
	}
	// The name, in parentheses, may have anything in it; after it comes field 3.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(fields) > 19 && string(fields[19]) == strconv.FormatUint(f.Start, 10)
}

// Discover returns the clusters that run, by their names. dirs are the user's run
// directories.
func Discover(dirs []string) []Found {
	var all []Found
	for _, dir := range dirs {
		names, _ := filepath.Glob(filepath.Join(dir, "clusters", "*.json"))
		for _, name := range names {
			var f Found
			b, err := os.ReadFile(name)
			if err == nil && json.Unmarshal(b, &f) == nil && f.Name != "" && f.Alive() {
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b Found) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// ErrNoCluster is that no cluster is named, and none runs.
var ErrNoCluster = errors.New("no cluster is running")

// Find returns the address of the cluster that a command is meant for: the one that
// GANGWAY_CLUSTER says, else the only one that runs for this user, by dirs, else the only one
// of all users of the machine, by system ([SystemDir]). Without any the error is
// [ErrNoCluster].
func Find(getenv func(string) string, dirs []string, system string) (address string, err error) {
	switch name := getenv(Variable); {
	case strings.HasPrefix(name, "/"):
		return "unix:" + name, nil
	case strings.HasPrefix(name, "unix:"):
		return name, nil
	case name != "":
		for _, f := range append(Discover(dirs), discoverSystem(system)...) {
			if f.Name == name {
				return f.Socket, nil
			}
		}
		return "", &fault.Error{
			What: fmt.Errorf("find cluster %s (%s): %w", name, Variable, fs.ErrNotExist),
			Hint: "start it, or unset " + Variable + "; running: " + running(append(Discover(dirs), discoverSystem(system)...)), Code: fault.CodeUnreachable,
		}
	}
	all := Discover(dirs)
	if len(all) == 0 {
		all = discoverSystem(system)
	}
	switch len(all) {
	case 0:
		return "", &fault.Error{What: ErrNoCluster, Hint: "start one here: gangway up; or name one: " + Variable + "=unix:/PATH", Code: fault.CodeUnreachable}
	case 1:
		return all[0].Socket, nil
	default:
		return "", &fault.Error{
			What: fmt.Errorf("%d clusters run here: %s", len(all), running(all)),
			Hint: "choose one: export " + Variable + "=" + all[0].Name, Code: fault.CodeUnreachable,
		}
	}
}

// discoverSystem returns the clusters that daemons of all users have announced in dir, by
// their names. Of one that has several daemons here any does: they are asked the same. Whether
// they run nobody may see who may not look at their processes.
func discoverSystem(dir string) []Found {
	names, _ := filepath.Glob(filepath.Join(dir, "clusters", "*.json"))
	var all []Found
	for _, name := range names {
		var f Found
		b, err := os.ReadFile(name)
		if err == nil && json.Unmarshal(b, &f) == nil && f.Name != "" {
			all = append(all, f)
		}
	}
	// The controller's own is the first: nothing stands before the ending of its file.
	slices.SortStableFunc(all, func(a, b Found) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b Found) bool { return a.Name == b.Name })
}

func running(all []Found) string {
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return strings.Join(names, ", ")
}
