package merged

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"pgregory.net/rapid"
)

// tarOf writes a layer as a tar archive.
func tarOf(t *testing.T, n int, list []layer.Entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range list {
		h := &tar.Header{
			Name: e.Name, Linkname: e.Link, Mode: int64(e.Mode), Uid: int(e.UID), Gid: int(e.GID), Format: tar.FormatPAX,
			ModTime: time.Unix(e.Sec, int64(e.Nsec)), Devmajor: int64(e.Major), Devminor: int64(e.Minor), PAXRecords: map[string]string{},
			Typeflag: map[layer.Type]byte{
				layer.File: tar.TypeReg, layer.Dir: tar.TypeDir, layer.Symlink: tar.TypeSymlink, layer.HardLink: tar.TypeLink,
				layer.CharDevice: tar.TypeChar, layer.BlockDevice: tar.TypeBlock, layer.FIFO: tar.TypeFifo,
			}[e.Type],
		}
		for _, x := range e.Xattrs {
			h.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
		}
		switch e.Type {
		case layer.Dir:
			h.Name = "./" + strings.TrimSuffix(e.Name+"/", "./")
			if e.Name == "" {
				h.Name = "./"
			}
		case layer.File:
			h.Size = e.Size
		}
		must(t, w.WriteHeader(h))
		if e.Type == layer.File {
			_, err := w.Write(contentBytes(n, e))
			must(t, err)
		}
	}
	must(t, w.Close())
	return out.Bytes()
}

// layoutDir writes a stack as an OCI layout with one image, tagged "t".
func layoutDir(t *testing.T, dir string, layers [][]layer.Entry) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755))
	put := func(mediaType string, content any) oci.Descriptor {
		b, ok := content.([]byte)
		if !ok {
			var err error
			b, err = json.Marshal(content)
			must(t, err)
		}
		d := oci.DigestOf(b)
		must(t, os.WriteFile(filepath.Join(dir, "blobs/sha256", d.Hex()), b, 0o644))
		return oci.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
	}
	m := oci.Manifest{SchemaVersion: 2, MediaType: "application/vnd.oci.image.manifest.v1+json"}
	var diffIDs []oci.Digest
	for i, list := range layers {
		d := put("application/vnd.oci.image.layer.v1.tar", tarOf(t, i, list))
		m.Layers = append(m.Layers, d)
		diffIDs = append(diffIDs, d.Digest)
	}
	m.Config = put("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": "amd64", "os": "linux", "rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs}, "config": map[string]any{},
	})
	d := put(m.MediaType, m)
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": "t"}
	index, err := json.Marshal(oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{d}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
}

// peer is another program that applies layers.
type peer struct {
	// unpack takes the image layout:t in dir and returns where its tree is.
	unpack func(t *testing.T, dir string) (root string)
	// avoid says of which entries the peer makes something else, and why; or changes
	// the entry so that it does not.
	avoid  func(o *oracle, e *layer.Entry) bool
	unique bool // it refuses layers in which a name comes twice
}

// tool runs a program in a directory and returns what it prints.
func tool(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
	cmd := exec.CommandContext(context.Background(), name, args...) // also in Cleanup
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, errs.Bytes())
	}
	return strings.TrimSpace(string(out))
}

func peers() map[string]peer {
	return map[string]peer{
		"umoci": {
			unpack: func(t *testing.T, dir string) string {
				tool(t, dir, "umoci", "raw", "unpack", "--image", "layout:t", "out")
				return filepath.Join(dir, "out")
			},
			avoid: func(o *oracle, e *layer.Entry) bool {
				// umoci takes aufs' files for whiteouts of names that begin with ".wh.", and
				// resolves their parents.
				return isAufs(e) || linksIntoItself(o, e)
			},
		},
		"podman": {
			unpack: func(t *testing.T, dir string) string {
				podman := func(args ...string) string {
					all := append([]string{"--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs"}, args...)
					return tool(t, dir, "podman", all...)
				}
				id := podman("pull", "-q", "oci:layout:t")
				t.Cleanup(func() { podman("image", "unmount", "-f", id) })
				return podman("image", "mount", id)
			},
			avoid:  avoidPodman,
			unique: true,
		},
	}
}

// avoidPodman: containers/storage (pkg/archive/diff.go) leaves paths to the kernel, and
// knows what a layer put there only by the entries' own names.
func avoidPodman(o *oracle, e *layer.Entry) bool {
	dir, err := o.follow(parentOf(e.Name))
	base := baseOf(e.Name)
	if from, err := o.follow(parentOf(e.Link)); e.Type == layer.HardLink && err == nil && o.at[join(from, baseOf(e.Link))] != nil {
		// It gives the inode the attributes of the hard link's entry. In layers that
		// tools make they are the same.
		v := o.at[join(from, baseOf(e.Link))]
		if v.Type != layer.File {
			return true // lost when the vfs driver copies a layer for the next
		}
		e.Mode, e.UID, e.GID, e.Sec, e.Nsec, e.Xattrs = v.Mode, v.UID, v.GID, v.Sec, v.Nsec, v.Xattrs
	}
	touched := func(path string) bool {
		for p := range o.upper {
			if p == path || strings.HasPrefix(p, path+"/") || path == "" {
				return true
			}
		}
		return false
	}
	switch {
	case isAufs(e) || linksIntoItself(o, e) || err != nil:
		return true
	// The kernel follows 40 links, and no ".." behind what is missing.
	case e.Type == layer.Symlink && strings.Contains(strings.TrimLeft(e.Link, "./"), ".."):
		return true
	// An error if the directory is missing, else it removes what this layer put there
	// by another name or as a parent.
	case base == ".wh..wh..opq":
		return o.at[dir] == nil || touched(dir)
	// It makes missing parents, and removes what this layer put there.
	case strings.HasPrefix(base, ".wh."):
		return o.at[dir] == nil || touched(join(dir, strings.TrimPrefix(base, ".wh.")))
	// The way to an entry may lead through the symlink that it replaces.
	case dir != parentOf(e.Name) && o.at[join(dir, base)] != nil && o.at[join(dir, base)].Type == layer.Symlink:
		return true
	// It sets directories' times at the layer's end, by the entries' own names: none of
	// them may lead elsewhere by then.
	case dir != parentOf(e.Name) && e.Type == layer.Dir, touched(join(dir, base)) && o.at[join(dir, base)] != nil && e.Type != layer.Dir:
		return true
	// It leaves a directory the xattrs that a lower layer gave it.
	case e.Type == layer.Dir && o.at[join(dir, base)] != nil && o.at[join(dir, base)].Xattrs != nil:
		return true
	// A directory that a dangling symlink names is not made.
	case o.at[dir] == nil && dir != parentOf(e.Name):
		return true
	}
	return false
}

// TestPeers: umoci and podman make the same tree of a stack, where they can.
func TestPeers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := 20
	switch {
	case long():
		n = 100
	case testing.Short():
		n = 1
	}
	gen := rapid.Custom(func(rt *rapid.T) [][]layer.Entry {
		var layers [][]layer.Entry
		for range 4 {
			g := &stackGen{T: rt}
			var list []layer.Entry
			for range 150 {
				e := humble(g.entry())
				e.Sec++ // 0 marks implicit directories
				list = append(list, e)
			}
			layers = append(layers, list)
		}
		return layers
	})
	for name, p := range peers() {
		t.Run(name, func(t *testing.T) {
			for seed := range n {
				o := newOracle()
				var good [][]layer.Entry
				for _, list := range gen.Example(seed) {
					o.nextLayer()
					var fine []layer.Entry
					names := map[string]bool{}
					for _, e := range list {
						if !(p.unique && names[e.Name]) && !p.avoid(o, &e) && o.apply(e) == nil {
							fine = append(fine, e)
							names[e.Name] = true
						}
					}
					good = append(good, fine)
				}
				want, err := merge(good...)
				must(t, err)
				must(t, o.see().diff(want))
				dir := t.TempDir()
				layoutDir(t, filepath.Join(dir, "layout"), good)
				t.Cleanup(func() {
					for i, list := range good {
						for _, e := range list {
							if t.Failed() {
								t.Logf("layer %d: type %d %q link %q mode %o inode %d", i, e.Type, e.Name, e.Link, e.Mode, e.Inode)
							}
						}
					}
				})
				root := p.unpack(t, dir)
				got, err := seeDir(root)
				must(t, err)
				for path, s := range want {
					g, ok := got[path]
					if !ok || s.mode&syscall.S_IFMT != syscall.S_IFDIR || g.mode&syscall.S_IFMT != syscall.S_IFDIR {
						continue
					}
					// Peers change directories' times when they put something there; how
					// they make a missing parent differs.
					g.sec, g.nsec, g.links = s.sec, s.nsec, s.links
					if s.sec == 0 {
						g.mode = s.mode
					}
					got[path] = g
				}
				if err := want.diff(got); err != nil {
					t.Errorf("seed %d, %d names: %v", seed, len(want), err)
					return
				}
			}
		})
	}
}

func isAufs(e *layer.Entry) bool {
	return strings.HasPrefix(baseOf(e.Name), ".wh..wh.") && baseOf(e.Name) != ".wh..wh..opq"
}

// linksIntoItself says whether a hard link's target is what its name replaces, or
// lies below that: peers remove first, and then find nothing to link to.
func linksIntoItself(o *oracle, e *layer.Entry) bool {
	if e.Type != layer.HardLink {
		return false
	}
	from, err := o.follow(parentOf(e.Link))
	to, err2 := o.follow(parentOf(e.Name))
	return err == nil && err2 == nil && strings.HasPrefix(join(from, baseOf(e.Link))+"/", join(to, baseOf(e.Name))+"/")
}
