package image_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	imagefs "github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/squashfs"
)

// TestPlatformOfConfig: an image that its configuration says is for another platform is
// refused, unless that platform was asked for; one that says nothing is taken.
func TestPlatformOfConfig(t *testing.T) {
	h, s := newHub(t), newStore(t)
	host, other := oci.HostPlatform(), oci.Platform{OS: "linux", Architecture: "s390x"}
	push := func(name string, p oci.Platform) string {
		i := paint(t, layerOf(t, "a", name))
		is := string(marshal(t, host.Architecture))
		config := bytes.Replace(i.config, []byte(is), marshal(t, p.Architecture), 1)
		if p.OS == "" {
			config = bytes.Replace(config, marshal(t, host.OS), []byte(`""`), 1)
		}
		i.manifest = bytes.ReplaceAll(i.manifest, []byte(oci.DigestOf(i.config)), []byte(oci.DigestOf(config)))
		m, err := oci.DecodeManifest(i.manifest)
		if err != nil {
			t.Fatal(err)
		}
		m.Config.Size = int64(len(config))
		i.config, i.manifest = config, marshal(t, m)
		return h.push(t, name, i)
	}
	mine, theirs, silent := push("team/mine:1", host), push("team/theirs:1", other), push("team/silent:1", oci.Platform{})
	_, err := pull(t, s, theirs, image.PullOptions{})
	mustSay(t, err, "pull docker://"+theirs+": the image is for linux/s390x, not for "+host.String(),
		"gangway image pull --platform linux/s390x docker://"+theirs)
	_, err = pull(t, s, mine, image.PullOptions{Platform: other})
	mustSay(t, err, "the image is for "+host.String()+", not for linux/s390x")
	if all, err := s.List(); err != nil || len(all) > 0 {
		t.Errorf("the store lists %v, %v", all, err)
	}
	for ref, p := range map[string]oci.Platform{mine: host, theirs: other, silent: other} {
		if i, err := pull(t, s, ref, image.PullOptions{Platform: p}); err != nil || i.Platform != p.String() {
			t.Errorf("%s for %s: %+v, %v", ref, p, i, err)
		}
	}
}

// TestVerifyHot: damage of what containers read when they start is found and removed.
func TestVerifyHot(t *testing.T) {
	h, s := newHub(t), newStore(t)
	i := mustPull(t, s, h.push(t, "team/torch:1", paint(t, layerOf(t, "a", noise(1, 5000)))))
	o, err := s.OpenImage(&i, squashfs.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	tree := imagefs.New(o.Index, o.Layers)
	tree.UseHot(o.HotPath())
	if _, err := tree.ReadFile("/a", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := tree.CloseHot(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustBeGood(t, s, 1)
	if err := flip(2000)(o.HotPath()); err != nil {
		t.Fatal(err)
	}
	for _, keep := range []bool{true, false} {
		r, err := s.VerifyAll(t.Context(), image.VerifyOptions{Keep: keep})
		if err != nil || len(r.Problems) != 1 || r.Problems[0].File != o.HotPath() || r.Problems[0].Removed == keep || r.Images != 1 {
			t.Fatalf("verify: %+v, %v", r, err)
		}
		mustSay(t, r.Err(), "makes it anew")
	}
	mustBeGood(t, s, 1)
	if names, _ := filepath.Glob(filepath.Dir(o.HotPath()) + "/*" + imagefs.HotSuffix); len(names) > 0 {
		t.Errorf("%v is left", names)
	}
}
