package merged_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
)

// TestApplyTree: in a tree that is no layer, whiteouts are files like others.
func TestApplyTree(t *testing.T) {
	entries := []layer.Entry{
		{Name: "", Type: layer.Dir, Mode: 0o700},
		{Name: "a", Type: layer.File},
		{Name: ".wh.a", Type: layer.File},
		{Name: ".wh..wh..opq", Type: layer.File},
		{Name: ".wh..wh.plnk", Type: layer.Dir},
		{Name: ".wh..wh.plnk/1", Type: layer.Symlink, Link: "x"},
		{Name: ".wh.link", Type: layer.HardLink, Link: ".wh..wh.plnk/1"},
		{Name: ".wh.", Type: layer.FIFO},
	}
	b := merged.NewBuilder(merged.Options{})
	info := merged.LayerInfo{Path: "/x.sqsh", Size: 1, BlockSize: 4096}
	all := func(yield func(layer.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
	if err := b.ApplyTree(t.Context(), info, all, nil); err != nil {
		t.Fatal(err)
	}
	// A layer over it means what it says, and of the tree's names, too.
	over := func(yield func(layer.Entry, error) bool) { yield(layer.Entry{Name: ".wh.a", Type: layer.File}, nil) }
	var file strings.Builder
	if _, err := b.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, file.String()), []string{".wh.", ".wh..wh..opq", ".wh..wh.plnk", ".wh.a", ".wh.link", "a"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	if err := b.Apply(t.Context(), merged.LayerInfo{Path: "/y", BlockSize: 4096}, over, nil); err != nil {
		t.Fatal(err)
	}
	file.Reset()
	if _, err := b.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	if got := names(t, file.String()); slices.Contains(got, "a") || !slices.Contains(got, ".wh.a") {
		t.Errorf("names %q after a whiteout", got)
	}
}

// names are those in the root.
func names(t *testing.T, file string) []string {
	t.Helper()
	x, err := merged.New([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if err := merged.Check(t.Context(), x, nil); err != nil {
		t.Fatal(err)
	}
	var all []string
	for e, err := range x.ReadDir(merged.Root, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(e.Name))
	}
	return all
}
