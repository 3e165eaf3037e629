package image

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// FuzzTrailer: behind a squashfs image there is anything.
func FuzzTrailer(f *testing.F) {
	name := filepath.Join(f.TempDir(), "empty.sqsh")
	w, err := squashfs.Create(name, squashfs.WriterOptions{})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := w.Commit(f.Context(), nil); err != nil {
		f.Fatal(err)
	}
	image, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	raw := `{"config":{"Env":["A=b"]},"rootfs":{"type":"layers","diff_ids":[]}}`
	f.Add([]byte(configHead + "67 " + string(oci.DigestOf([]byte(raw))) + "\n" + raw))
	f.Add([]byte(configHead + "-1 sha256:00\n"))
	f.Add([]byte("something else"))
	f.Fuzz(func(t *testing.T, trailer []byte) {
		b := append(slices.Clip(image), trailer...)
		r, err := squashfs.NewReader(bytes.NewReader(b), squashfs.ReaderOptions{Size: int64(len(b))})
		if err != nil {
			t.Fatal(err) // what is behind the image is none of its business
		}
		defer r.Close()
		c, err := readTrailer(r)
		if err == nil && !bytes.HasPrefix(trailer, []byte(configHead)) {
			t.Errorf("a configuration of %q: %+v", trailer, c)
		}
	})
}

// FuzzEnvironment: what is taken from a file is a variable with a name, and its value is
// in the file.
func FuzzEnvironment(f *testing.F) {
	f.Add("A=b\n# no\nexport C=\"d e\"\nLONG='x\n=none\n$(X)=y\nZ=\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range parseEnvironment(text) {
			name, value, ok := strings.Cut(v, "=")
			if !ok || name == "" || strings.ContainsAny(v, "\n\x00") || !strings.Contains(text, name) || !strings.Contains(text, value) {
				t.Errorf("%q from %q", v, text)
			}
		}
	})
}

// FuzzRecord: records and holds of any content are read or refused, and their digests are
// such, because they become names of files.
func FuzzRecord(f *testing.F) {
	d := string(oci.DigestOf(nil))
	f.Add([]byte(`{"reference":"a:1","digest":"` + d + `","manifest":"` + d + `","config":"` + d + `","layers":[{"digest":"` + d + `"}]}`))
	f.Add([]byte(`{"image":{"digest":"../x"}}`))
	name := filepath.Join(f.TempDir(), "record.json")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var all []Image
		if i, err := readRecord(name); err == nil {
			all = append(all, i)
		}
		if h, err := readHold(name); err == nil {
			all = append(all, h.Image)
		}
		for _, i := range all {
			for _, d := range append(layerDigests(i.Layers), i.Digest, i.Manifest, i.Config) {
				if strings.ContainsAny(string(d), "/\x00") || len(d) < 64 {
					t.Errorf("digest %q", d)
				}
			}
		}
	})
}
