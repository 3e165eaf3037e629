package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/proc"
)

// TestImportAllowed: root takes apart no files, nobody imports what holds the store.
func TestImportAllowed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "image.sqsh")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root := proc.IsRoot()
	for _, c := range []struct {
		file, store, want string
	}{
		{file, "/store", map[bool]string{true: "root takes apart no files"}[root]},
		{dir, "/store", ""},
		{dir, filepath.Dir(dir), ""},
		{dir, dir + "-store", ""},
		{dir, dir, "the store lies in it"},
		{dir, dir + "/not/there/yet", "the store lies in it"},
		{dir + "/link", dir + "/store", "the store lies in it"},
		{dir + "/missing", "/store", "no such file"},
	} {
		err := allowed(c.file, c.store)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("import %s into %s: %v, want %q", c.file, c.store, err, c.want)
		}
	}
}
