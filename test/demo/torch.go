package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// torchImage builds the image of PyTorch by the script that benchmarks use, too, and keeps it by
// the digest of the script: another script makes another image. Its layout is skopeo's name for
// the image in it.
func (d *demo) torchImage(ctx context.Context) (layout string, err error) {
	const script = "test/images/build.sh"
	text, err := os.ReadFile(script)
	if err != nil {
		return "", fmt.Errorf("find how the image is built: %w (run it in the root of the repository)", err)
	}
	sum := sha256.Sum256(text)
	dir := filepath.Join(d.cache, "images", "torch-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		d.say.note("it is there: %s", dir)
		return filepath.Join(dir, "layout") + ":1", nil
	}
	if os.Geteuid() != 0 {
		return "", errors.New("building it takes root, once: sudo env XDG_CACHE_HOME=" + filepath.Dir(d.cache) + " " + script + " torch " + dir + "; or DEMO=quick, which does without")
	}
	build := exec.CommandContext(ctx, script, "torch", dir)
	if err := d.show(build); err != nil {
		return "", fmt.Errorf("build the image: %w", err)
	}
	return filepath.Join(dir, "layout") + ":1", nil
}

// digits gets the pictures out of the package of Debian that carries them, and keeps it.
func (d *demo) digits(ctx context.Context) error {
	const inside = "usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz"
	kept := filepath.Join(d.cache, "digits.csv.gz")
	b, err := os.ReadFile(kept)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = d.unpacked(ctx, "python3-sklearn", inside); err != nil {
			return fmt.Errorf("get the data: %w", err)
		}
		err = os.WriteFile(kept+".next", b, 0o644)
		err = errors.Join(err, os.Rename(kept+".next", kept))
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.work(full.example), "digits.csv.gz"), b, 0o644)
}

// unpacked is a file of a package, which is not installed for that.
func (d *demo) unpacked(ctx context.Context, name, inside string) ([]byte, error) {
	dir := filepath.Join(d.dir, "package")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	get := exec.CommandContext(ctx, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name)
	get.Dir = dir
	if err := d.show(get); err != nil {
		return nil, err
	}
	all, err := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if err != nil || len(all) != 1 {
		return nil, fmt.Errorf("apt-get download left %d packages: %w", len(all), err)
	}
	if err := d.show(exec.CommandContext(ctx, "dpkg-deb", "-x", all[0], dir)); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, inside))
}
