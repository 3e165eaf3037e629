package main

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/gzip"
)

// changed measures the pull of an image of which one small layer is another than
// in the store, against the pull of that layer alone.
func (i *imageBench) changed() error {
	second, err := i.reg.manifest("image", "2")
	if err != nil {
		return err
	}
	had := map[string]bool{}
	for _, l := range i.torch.Layers {
		had[l.Digest] = true
	}
	var layers []descriptor
	for _, l := range second.Layers {
		if !had[l.Digest] {
			layers = append(layers, l)
		}
	}
	if len(layers) != 1 {
		return fmt.Errorf("tag 2 has %d layers that tag 1 has not, not 1", len(layers))
	}
	digest, err := i.diffID(layers[0])
	if err != nil {
		return err
	}
	if err := i.reg.pushImage("image", "only", layers, []string{digest}); err != nil {
		return err
	}
	us, alone, err := i.pairs(
		func() (sample, error) {
			dir, err := i.copyOfStore()
			if err != nil {
				return sample{}, err
			}
			return i.ours(dir, "pull", "-q", i.reg.ref("image:2"))
		},
		func() (sample, error) {
			dir, err := i.fresh("only")
			if err != nil {
				return sample{}, err
			}
			return i.ours(dir, "pull", "-q", i.reg.ref("image:only"))
		})
	if err != nil {
		return err
	}
	more := medianWall(us) - medianWall(alone)
	i.add(fmt.Sprintf("pull after one layer (%d bytes) changed, wall", layers[0].Size), seconds(medianWall(us)),
		seconds(medianWall(alone))+" (that layer alone)", seconds(more)+" more", "<= 1 s more")
	return nil
}

// diffID returns the digest of a layer, uncompressed, from the registry.
func (i *imageBench) diffID(l descriptor) (string, error) {
	name := filepath.Join(i.dir, "registry", "docker", "registry", "v2", "blobs", "sha256", l.Digest[7:9], l.Digest[7:], "data")
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, z); err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", h.Sum(nil)), nil
}

// copyOfStore returns a store like that with the whole image. Its files are the
// same ones: a store replaces files, and never changes one.
func (i *imageBench) copyOfStore() (string, error) {
	dir := filepath.Join(i.dir, "copy")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	_, err := i.command("cp", "-al", i.store, dir)
	return dir, err
}

// shared measures what is fetched of a second image, which has half of the layers
// of the first and one of its own.
func (i *imageBench) shared() error {
	own, diff, err := i.tarLayer("second", func(w *tar.Writer) error {
		rnd := rand.NewChaCha8([32]byte{1})
		const size = 8 << 20
		if err := w.WriteHeader(&tar.Header{Name: "second", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.CopyN(w, rnd, size)
		return err
	})
	if err != nil {
		return err
	}
	n := (len(i.torch.Layers) + 1) / 2
	layers, diffIDs := append([]descriptor(nil), i.torch.Layers[:n]...), append([]string(nil), i.floor.diffIDs[:n]...)
	for _, l := range layers {
		if err := i.reg.mount("image", "second", l.Digest); err != nil {
			return err
		}
	}
	if err := i.reg.pushImage("second", "1", append(layers, own), append(diffIDs, diff)); err != nil {
		return err
	}
	dir, err := i.copyOfStore()
	if err != nil {
		return err
	}
	p, err := i.reg.proxy()
	if err != nil {
		return err
	}
	s, err := i.ours(dir, "pull", "-q", p.ref("second:1"))
	if err != nil {
		return err
	}
	i.add(fmt.Sprintf("pull of a second image, %d layers shared, bytes fetched", n), fmt.Sprint(p.bytes.Load()),
		fmt.Sprintf("%d (its own layer)", own.Size), fmt.Sprintf("%.4f", float64(p.bytes.Load())/float64(own.Size)), "its own layers only")
	i.add("... wall", seconds(s.wall), "-", "", "")
	return errors.Join(p.close(), os.RemoveAll(dir))
}

// tarLayer pushes a layer that fill writes, and returns it and its diffID.
func (i *imageBench) tarLayer(repository string, fill func(*tar.Writer) error) (d descriptor, diffID string, err error) {
	file, err := os.Create(filepath.Join(i.dir, "layer.tar.gz"))
	if err != nil {
		return d, "", err
	}
	defer func() { _ = errors.Join(file.Close(), os.Remove(file.Name())) }()
	blob, archive := sha256.New(), sha256.New()
	buf := bufio.NewWriterSize(io.MultiWriter(file, blob), 1<<20)
	z, err := gzip.NewWriterLevel(buf, gzip.BestSpeed)
	if err != nil {
		return d, "", err
	}
	w := tar.NewWriter(io.MultiWriter(z, archive))
	if err := fill(w); err != nil {
		return d, "", err
	}
	if err := errors.Join(w.Close(), z.Close(), buf.Flush()); err != nil {
		return d, "", err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return d, "", err
	}
	d = descriptor{typeLayer, fmt.Sprintf("sha256:%x", blob.Sum(nil)), size}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return d, "", err
	}
	return d, fmt.Sprintf("sha256:%x", archive.Sum(nil)), i.reg.push(repository, d, io.NopCloser(file))
}

// warmPulls is how often a pull of what the store has is measured.
const warmPulls = 25

// warm measures pulls of an image that is in the store: by tag, which asks the
// registry once what the tag is now, and by digest with nobody to ask.
func (i *imageBench) warm() error {
	p, err := i.reg.proxy()
	if err != nil {
		return err
	}
	raw, err := i.reg.do("GET", "/v2/image/manifests/1", "", nil)
	if err != nil {
		return err
	}
	tag := p.ref("image:1")
	digest := p.ref(fmt.Sprintf("image@sha256:%x", sha256.Sum256([]byte(raw))))
	for _, ref := range []string{tag, digest} {
		// The layers are there, but not under the proxy's name.
		if _, err := i.ours(i.store, "pull", "-q", ref); err != nil {
			return err
		}
	}
	requests, bytes := p.requests.Load(), p.bytes.Load()
	byTag, err := i.repeat(tag)
	if err != nil {
		return err
	}
	requests, bytes = p.requests.Load()-requests, p.bytes.Load()-bytes
	i.add("pull, warm, by tag, wall", millis(byTag), "-", "", "")
	i.add("... requests each, bytes of bodies each", fmt.Sprintf("%.2f, %.0f", float64(requests)/warmPulls, float64(bytes)/warmPulls),
		"-", "", "1 request")
	if err := p.close(); err != nil {
		return err
	}
	byDigest, err := i.repeat(digest)
	if err != nil {
		return err
	}
	i.add("pull, warm, by digest, the registry unreachable, wall", millis(byDigest), "-", "", "<= 20 ms")
	return nil
}

// repeat returns the median time of many pulls.
func (i *imageBench) repeat(ref string) (time.Duration, error) {
	var list []sample
	for range warmPulls {
		s, err := i.ours(i.store, "pull", "-q", ref)
		if err != nil {
			return 0, err
		}
		list = append(list, s)
	}
	return medianWall(list), nil
}

// manyFiles measures the memory for a layer of half a million tiny files.
func (i *imageBench) manyFiles() error {
	const files = 500_000
	d, diff, err := i.tarLayer("many", func(w *tar.Writer) error {
		rnd := rand.New(rand.NewPCG(5, 6))
		var text []byte
		for n := range files {
			text = fmt.Appendf(text[:0], "name_%d = %d\n", n, rnd.Uint64())
			h := &tar.Header{
				Name: fmt.Sprintf("site/package%04d/file%06d.py", n/100, n), Typeflag: tar.TypeReg, Mode: 0o644,
				Size: int64(len(text)), ModTime: time.Unix(1_700_000_000+rnd.Int64N(1e6), 0),
			}
			if err := w.WriteHeader(h); err != nil {
				return err
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := i.reg.pushImage("many", "1", []descriptor{d}, []string{diff}); err != nil {
		return err
	}
	dir, err := i.fresh("many")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := i.ours(dir, "pull", "-q", i.reg.ref("many:1"))
	if err != nil {
		return err
	}
	i.add("pull of a layer of 500,000 files, peak memory", mib(s.peak), "-", "", "<= 256 MiB")
	i.add("... wall", seconds(s.wall), "-", "", "")
	return nil
}
