package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ordinaryUser is who pulls where root measures: nobody known to the machine.
// Gangway converts layers within its own process then, and for root in a child.
const ordinaryUser = 54321

// imageBench is what the measurements of images share.
type imageBench struct {
	*bench
	uid   int // that gangway runs as
	reg   *registry
	torch manifest
	total int64 // bytes of all its layers, compressed
	floor floor
	store string // with the whole image in it, pulled through the registry's proxy
}

// image measures pulling from a registry on this machine. All clients get the
// same bytes from it, over loopback, mostly from the page cache.
func (b *bench) image() error {
	layout, err := b.builtImage()
	if err != nil {
		return err
	}
	i := &imageBench{bench: b, uid: os.Geteuid()}
	if i.uid == 0 {
		i.uid = ordinaryUser
		if err := i.forOrdinaryUser(); err != nil {
			return err
		}
	}
	i.reg, err = b.startRegistry()
	if err != nil {
		return err
	}
	defer i.reg.stop()
	for _, tag := range []string{"1", "2"} {
		if _, err := b.command("skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false",
			"oci:"+layout+":"+tag, "docker://"+i.reg.host+"/image:"+tag); err != nil {
			return err
		}
	}
	if i.torch, err = i.reg.manifest("image", "1"); err != nil {
		return err
	}
	for _, l := range i.torch.Layers {
		i.total += l.Size
	}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"floor", func() error { return i.measureFloor(layout) }},
		{"cold", i.cold},
		{"root", i.asRoot},
		{"changed layer", i.changed},
		{"shared layers", i.shared},
		{"warm", i.warm},
		{"export", i.export},
		{"many files", i.manyFiles},
	} {
		log.Printf(" image: %s", part.name)
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// builtImage returns the layout of the image, which is built on first use and kept.
func (b *bench) builtImage() (layout string, err error) {
	if b.images == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		b.images = filepath.Join(cache, "gangway-bench", "images")
	}
	dir := filepath.Join(b.images, b.kind)
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		log.Printf("building the image in %s; this takes minutes", dir)
		if _, err := b.command("test/images/build.sh", b.kind, dir); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "layout"), nil
}

// forOrdinaryUser puts the programs where another user may start them, and lets that
// user into the scratch directory.
func (b *bench) forOrdinaryUser() error {
	from := filepath.Dir(b.gangway)
	b.gangway = filepath.Join(b.dir, "gangway")
	return errors.Join(os.Chmod(b.dir, 0o755),
		copyProgram(filepath.Join(from, "gangway"), b.gangway), copyProgram(filepath.Join(from, "gangwayd"), b.gangway+"d"))
}

// gangwayAs runs gangway with a store, as a user.
func (i *imageBench) gangwayAs(uid int, store string, args ...string) (sample, error) {
	args = append([]string{"image", args[0], "--store", store}, args[1:]...)
	cmd := exec.CommandContext(i.ctx, i.gangway, args...)
	cmd.Env = []string{"HOME=" + store, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}},
		}
	}
	return measure(cmd)
}

func (i *imageBench) ours(store string, args ...string) (sample, error) {
	return i.gangwayAs(i.uid, store, args...)
}

// fresh makes an empty directory for the user, and has what others wrote before
// written to the disk, so that nobody waits for it.
func (i *imageBench) fresh(name string) (string, error) {
	dir := filepath.Join(i.dir, name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, i.uid, i.uid)); err != nil {
		return "", err
	}
	syscall.Sync()
	return dir, nil
}

// cold measures pulling into nothing, by all clients in turn.
func (i *imageBench) cold() error {
	var us, pod, pipe []sample
	var kept, podKept, pipeKept int64
	for range i.rounds {
		for _, client := range []struct {
			name string
			pull func(dir string) (sample, error)
			end  func(dir string)
			list *[]sample
			kept *int64
		}{
			{"store", func(dir string) (sample, error) { return i.ours(dir, "pull", "-q", i.reg.ref("image:1")) }, nil, &us, &kept},
			{"podman", i.podman, i.podmanEnd, &pod, &podKept},
			{"pipe", i.pipe, nil, &pipe, &pipeKept},
		} {
			dir, err := i.fresh(client.name)
			if err != nil {
				return err
			}
			s, err := client.pull(dir)
			if err != nil {
				return err
			}
			log.Printf("  %s: wall %s, cpu %s, peak %s, written %s", client.name, seconds(s.wall), seconds(s.cpu), mib(s.peak), mib(s.written))
			*client.list = append(*client.list, s)
			if *client.kept, err = diskUsage(dir); err != nil {
				return err
			}
			if client.end != nil {
				client.end(dir)
			}
			if client.name != "store" {
				_ = os.RemoveAll(dir)
			}
		}
	}
	i.store = filepath.Join(i.dir, "store")
	i.reportCold("podman pull", us, pod, kept, podKept, ">= 2 x the speed")
	i.reportCold("skopeo + gzip -dc | tar2sqfs, zstd 3, two at once", us, pipe, kept, pipeKept, "no slower")
	i.add("pull, cold: wall beside the floor", seconds(medianWall(us)), seconds(i.floor.wall()),
		fmt.Sprintf("%.2f", medianWall(us).Seconds()/i.floor.wall().Seconds()), "<= 30 s")
	i.add("pull, cold: processor time beside the floor's", seconds(medianCPU(us)), seconds(i.floor.cpu()),
		fmt.Sprintf("%.2f", medianCPU(us).Seconds()/i.floor.cpu().Seconds()), "")
	written := median(column(us, func(s sample) int64 { return s.written }))
	i.add("pull, cold: bytes written / compressed", mib(written), mib(i.total),
		fmt.Sprintf("%.3f", float64(written)/float64(i.total)), "<= 1.15")
	i.add("pull, cold: disk kept / unpacked", mib(kept), mib(i.floor.content),
		fmt.Sprintf("%.3f", float64(kept)/float64(i.floor.content)), "<= 0.48")
	return nil
}

func (i *imageBench) reportCold(peer string, us, them []sample, kept, theirs int64, target string) {
	written := func(s sample) int64 { return s.written }
	over := func(a, b int64) string { return fmt.Sprintf("%.2f", float64(a)/float64(b)) }
	i.add("pull, cold, wall", seconds(medianWall(us)), seconds(medianWall(them))+" ("+peer+")",
		fmt.Sprintf("%.2f x the speed", 1/ratio(us, them)), target)
	i.add("... processor time", seconds(medianCPU(us)), seconds(medianCPU(them)),
		fmt.Sprintf("%.2f", medianCPU(us).Seconds()/medianCPU(them).Seconds()), "")
	i.add("... peak memory, largest process", mib(peak(us)), mib(peak(them)), over(peak(us), peak(them)), "")
	a, t := median(column(us, written)), median(column(them, written))
	i.add("... bytes written", mib(a), mib(t), over(a, t), "")
	i.add("... disk kept", mib(kept), mib(theirs), over(kept, theirs), "")
}

// podman pulls as who runs the bench, with storage of its own.
func (i *imageBench) podman(dir string) (sample, error) {
	return i.command(append(podmanIn(dir), "pull", "-q", "--tls-verify=false", i.reg.ref("image:1"))...)
}

func podmanIn(dir string) []string {
	return []string{
		"podman", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "overlay",
	}
}

// podmanEnd frees what podman leaves mounted, and what it keeps with other owners.
func (i *imageBench) podmanEnd(dir string) {
	_ = syscall.Unmount(filepath.Join(dir, "root", "overlay"), syscall.MNT_DETACH)
	if os.Geteuid() != 0 {
		_, _ = i.command("podman", "unshare", "rm", "-rf", dir)
	}
}

// pipeScript fetches an image and converts its layers with ready tools.
const pipeScript = `set -euo pipefail
ref=$1 dir=$2; shift 2
skopeo --insecure-policy copy -q --src-tls-verify=false "docker://$ref" "dir:$dir"
cd "$dir"
printf '%s\n' "$@" | xargs -P2 -n1 bash -euo pipefail -c '
	gzip -dc "$0" | tar2sqfs -q -f -c zstd -X level=3 "$0.sqsh" >/dev/null 2>&1; rm "$0"'`

func (i *imageBench) pipe(dir string) (sample, error) {
	args := []string{"bash", "-c", pipeScript, "pipe", i.reg.ref("image:1"), dir}
	for _, l := range i.torch.Layers {
		args = append(args, strings.TrimPrefix(l.Digest, "sha256:"))
	}
	return i.command(args...)
}

// asRoot measures a pull by root, whose layers are converted in child processes.
func (i *imageBench) asRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	dir, err := i.fresh("rootstore")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, 0, 0); err != nil {
		return err
	}
	s, err := i.gangwayAs(0, dir, "pull", "-q", i.reg.ref("image:1"))
	if err != nil {
		return err
	}
	i.add("pull, cold, by root (layers in child processes), wall", seconds(s.wall), "-", "", "")
	i.add("... processor time", seconds(s.cpu), "-", "", "")
	return nil
}

// export measures the writing of one squashfs of the whole image.
func (i *imageBench) export() error {
	dir, err := i.fresh("export")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var list []sample
	file := filepath.Join(dir, "image.sqsh")
	for range i.rounds {
		s, err := i.ours(i.store, "export", i.reg.ref("image:1"), "--force", "-o", file)
		if err != nil {
			return err
		}
		list = append(list, s)
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	i.add("export, wall", seconds(medianWall(list)), "-", "", "")
	i.add("... processor time", seconds(medianCPU(list)), "-", "", "")
	i.add("... peak memory", mib(peak(list)), "-", "", "")
	i.add("... size", mib(st.Size()), "-", "", "")
	return nil
}

// diskUsage is what the files below dir take on the disk, each once.
func diskUsage(dir string) (int64, error) {
	var sum int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			sum += st.Blocks << 9
		}
		return nil
	})
	return sum, err
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
