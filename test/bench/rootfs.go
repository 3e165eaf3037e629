package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// rootfsBench measures the root file system of the large image: ours and its peers',
// each with the same program in a container.
type rootfsBench struct {
	*containers
	backings []backing
	running  []*agent // of those, while they run
	// times are by what was measured and by backing, one for each round.
	times map[string][][]time.Duration
	order []string // of what was measured
}

// importing is the command that reads many files of the image, as programs do.
func (c *containers) importing() []string {
	module := "torch"
	if c.kind != "torch" {
		module = "argparse" // what python3-minimal has
	}
	return []string{"/usr/bin/python3", "-c", "import " + module}
}

// bigFiles are files of the large image: one that cannot be compressed, and one that is.
func (r *rootfsBench) bigFiles() map[string]string {
	files := map[string]string{"stored": "/models/weights.bin"}
	match, _ := filepath.Glob(r.tree(bigImage) + "/usr/lib/x86_64-linux-gnu/libtorch_cpu.so.*")
	if len(match) == 0 {
		match, _ = filepath.Glob(r.tree(bigImage) + "/usr/bin/python3.*")
	}
	if len(match) > 0 {
		files["compressed"] = match[0][len(r.tree(bigImage)):]
	}
	return files
}

// rootfs measures what programs in containers see of the root file system.
func (b *bench) rootfs() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can mount the kernel's squashfs and drop caches")
	}
	return b.inContainers([]string{bigImage}, func(c *containers) error {
		r := &rootfsBench{containers: c, backings: c.backings(bigImage), times: map[string][][]time.Duration{}}
		r.running = make([]*agent, len(r.backings))
		err := r.all()
		for n := range r.backings {
			err = errors.Join(err, r.stop(n))
		}
		if err != nil {
			return err
		}
		r.report()
		return nil
	})
}

func (r *rootfsBench) all() error {
	for round := range r.rounds {
		log.Printf("  cold, round %d", round+1)
		for _, n := range r.turn(round) {
			if err := r.cold(n); err != nil {
				return fmt.Errorf("%s: %w", r.backings[n].name, err)
			}
		}
	}
	// All at once, warm and in turn.
	for n := range r.backings {
		if err := r.restart(n, false); err != nil {
			return err
		}
	}
	for round := range r.rounds + 1 {
		log.Printf("  warm, round %d", round)
		for _, n := range r.turn(round) {
			if err := r.warm(n, round); err != nil {
				return fmt.Errorf("%s: %w", r.backings[n].name, err)
			}
		}
	}
	return nil
}

// turn is the order of the backings in a round: another one is first each time.
func (r *rootfsBench) turn(round int) []int {
	list := make([]int, len(r.backings))
	for n := range list {
		list[n] = (n + round) % len(list)
	}
	return list
}

// restart starts a backing afresh: its server and its container, and with empty caches
// where that is asked for.
func (r *rootfsBench) restart(n int, empty bool) error {
	if err := r.stop(n); err != nil {
		return err
	}
	if empty {
		syscall.Sync()
		if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
			return err
		}
	}
	var err error
	r.running[n], err = r.backings[n].start()
	return err
}

func (r *rootfsBench) stop(n int) error {
	a := r.running[n]
	if a == nil {
		return nil
	}
	r.running[n] = nil
	return a.close()
}

// cold measures a backing that has just been started.
func (r *rootfsBench) cold(n int) error {
	importing := order{Run: [][]string{r.importing()}}
	walk := order{Run: [][]string{{"find", "/usr"}}}
	steps := []struct {
		what  string
		empty bool
		order order
	}{
		{"import " + r.importing()[2][7:] + ", caches empty", true, importing},
		{"import, new container, image in the page cache", false, importing},
		{"find /usr, caches empty", true, walk},
		{"find /usr, new container, image in the page cache", false, walk},
	}
	for _, kind := range []string{"stored", "compressed"} {
		file := r.bigFiles()[kind]
		for _, readers := range []int{1, 4} {
			o := order{Read: file, Readers: readers}
			what := fmt.Sprintf("read a large file, %s, %d readers", kind, readers)
			steps = append(steps, []struct {
				what  string
				empty bool
				order order
			}{{what + ", caches empty", true, o}, {what + ", new container, image in the page cache", false, o}}...)
		}
	}
	for _, s := range steps {
		if err := r.restart(n, s.empty); err != nil {
			return err
		}
		took, err := r.running[n].one(s.order)
		if err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		r.note(s.what, n, took)
	}
	return r.stop(n)
}

// lookups is how many names are looked up that are not there.
const lookups = 100_000

// warm measures a backing that has been used. Round 0 does not count.
func (r *rootfsBench) warm(n, round int) error {
	dir := "/usr/lib/python3/dist-packages"
	if _, err := os.Stat(r.tree(bigImage) + dir); err != nil {
		dir = "/usr/lib"
	}
	missing := order{Stat: fmt.Sprintf("%s/missing%d-", dir, round), Count: lookups}
	for _, s := range []struct {
		what  string
		order order
	}{
		{"find /usr, warm", order{Run: [][]string{{"find", "/usr"}}}},
		{"find /usr with all attributes, warm", order{Run: [][]string{{"find", "/usr", "-printf", `%M %n %s %t %p %l\n`}}}},
		{"import, warm", order{Run: [][]string{r.importing()}}},
		{"100,000 failed lookups, each name once", missing},
		{"100,000 failed lookups, again", missing},
	} {
		took, err := r.running[n].one(s.order)
		if err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		if round > 0 {
			r.note(s.what, n, took)
		}
	}
	return nil
}

func (r *rootfsBench) note(what string, n int, took time.Duration) {
	if r.times[what] == nil {
		r.times[what] = make([][]time.Duration, len(r.backings))
		r.order = append(r.order, what)
	}
	r.times[what][n] = append(r.times[what][n], took)
	log.Printf("    %-16s %s: %s", r.backings[n].name, what, took.Round(10*time.Microsecond))
}

// report adds a row for each peer.
func (r *rootfsBench) report() {
	module := r.importing()[2][7:]
	targets := map[string][]string{ // by peer, in the order of the backings
		"import " + module + ", caches empty":    {"", "<= 1.2", ""},
		"import, warm":                           {"", "", "<= 1.1"},
		"find /usr, warm":                        {"<= 0.5", "<= 1.2", ""},
		"find /usr with all attributes, warm":    {"<= 0.5", "<= 1.2", ""},
		"100,000 failed lookups, each name once": {"<= 20 us each (2.00 s)", "", ""},
	}
	for _, what := range r.order {
		list := r.times[what]
		for n := 1; n < len(list); n++ {
			title, target := what, ""
			if n > 1 {
				title = "..."
			}
			if t := targets[what]; t != nil {
				target = t[n-1]
			}
			r.add(title, spread(list[0]), spread(list[n])+" ("+r.backings[n].name+")", fmt.Sprintf("%.2f", ratioOf(list[0], list[n])), target)
		}
	}
}

// spread is the median, with the least and the most.
func spread(list []time.Duration) string {
	return fmt.Sprintf("%.3f s (%.3f-%.3f)", median(list).Seconds(), slices.Min(list).Seconds(), slices.Max(list).Seconds())
}
