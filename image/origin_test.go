package image_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
)

// TestOrigins: in a store that users share, what one repository has sent is not another's:
// that has to send it, too, once, also if it is the same registry's; it is not converted
// again. What a repository claims to have, and does not, is refused.
func TestOrigins(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	p := three(t, 20_000)
	pull := func(name string) ([]string, error) {
		h.requests()
		ref, err := reference.Parse(h.push(t, name, p))
		if err != nil {
			t.Fatal(err)
		}
		h.requests()
		src, err := s.OpenSource(t.Context(), registry.New(registry.Options{Retries: 1}), ref)
		if err != nil {
			t.Fatal(err)
		}
		i, err := s.Pull(t.Context(), src, image.PullOptions{Reference: ref.String(), Origin: ref.Host + "/" + ref.Repository})
		if err == nil && !s.Shown(ref.Host+"/"+ref.Repository, &i) {
			t.Errorf("%s was pulled, and has not shown all", name)
		}
		return h.requests(), err
	}
	count := func(requests []string, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, times := range downloads(requests) {
			n += times
		}
		return n
	}
	if n := count(pull("ann/secret:1")); n != 4 {
		t.Errorf("the first pull had %d downloads, want a configuration and three layers", n)
	}
	before := layerTimes(t, s)
	if n := count(pull("ann/secret:2")); n != 0 {
		t.Errorf("a second tag of the repository had %d downloads", n)
	}
	h.spoils(func(w http.ResponseWriter, r *http.Request) bool {
		hex := p.layers[1].desc.Digest.Hex()
		if r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, "/v2/bob/") || !strings.HasSuffix(r.URL.Path, hex) {
			return false
		}
		_, _ = w.Write(make([]byte, p.layers[1].desc.Size))
		return true
	})
	if _, err := pull("bob/forged:1"); err == nil || !strings.Contains(err.Error(), "not those that the manifest names") {
		t.Errorf("a repository that has other bytes: %v", err)
	}
	h.spoils(nil)
	// The other layers may have been on their way when the refused one ended the pull.
	if n := count(pull("bob/forged:1")); n < 1 || n > 3 {
		t.Errorf("when it has the layer, there were %d downloads, want those that it had not shown", n)
	}
	if n := count(pull("bob/other:1")); n != 4 {
		t.Errorf("another repository had %d downloads", n)
	}
	if after := layerTimes(t, s); after != before {
		t.Errorf("layers were made again: %s, and before %s", after, before)
	}
	mustBeGood(t, s, 4)

	// What nobody needs goes with what is known of it.
	none := int64(0)
	if _, err := s.GC(t.Context(), image.GCOptions{KeepBytes: &none}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir(), "origins/v1/*")); len(left) != 0 {
		t.Errorf("gc leaves %q", left)
	}
}

// layerTimes tells whether files of layers are the same.
func layerTimes(t *testing.T, s *image.Store) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.Dir(), "layers/v1/*/*"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range names {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(name + st.ModTime().String() + "\n")
	}
	return all.String()
}
