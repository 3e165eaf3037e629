package step

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestPrograms: the steps of a node share one directory of commands of each kind, whole
// whenever it can be seen, whatever the umask, and however many make it at once.
func TestPrograms(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gangway")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	programs := filepath.Join(t.TempDir(), "programs")
	for _, mounted := range []bool{false, true} {
		dirs := make([]string, 8)
		var group sync.WaitGroup
		for i := range dirs {
			group.Go(func() {
				s := &supervisor{SuperviseOptions: SuperviseOptions{Program: program, Programs: programs}}
				var err error
				if dirs[i], err = s.programs(mounted); err != nil {
					t.Error(err)
				}
				for _, name := range append(programNames(), programName) {
					if _, err := os.Stat(filepath.Join(dirs[i], name)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		for _, dir := range dirs {
			if dir != dirs[0] {
				t.Errorf("%s and %s", dir, dirs[0])
			}
		}
	}
	if all, err := os.ReadDir(programs); err != nil || len(all) != 2 {
		t.Errorf("%v %v", all, err)
	}
	gone := &supervisor{SuperviseOptions: SuperviseOptions{Program: program + "-not", Programs: programs}}
	if dir, err := gone.programs(false); err == nil {
		t.Errorf("links to nothing: %s", dir)
	}
}
