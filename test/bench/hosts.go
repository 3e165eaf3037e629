package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"time"
)

// hostRounds is how often a host is cut off.
const hostRounds = 3

// hosts measures what becomes of a job whose host is cut off, on five hosts with addresses of
// their own: what the test of it says, which makes them and looks at all of it.
func (b *bench) hosts() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root makes network namespaces with addresses of their own")
	}
	said := regexp.MustCompile(`lost after (\S+); its rank ran on for (\S+); the next attempt's first rank after (\S+),`)
	var lost, ran, next []time.Duration
	for range hostRounds {
		cmd := exec.Command("go", "test", "./test", "-count=1", "-v", "-run", "TestHosts/(path|cut_off)$")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		m := said.FindSubmatch(out)
		if err != nil || m == nil {
			return fmt.Errorf("go test -run TestHosts: %w\n%s", err, out)
		}
		for i, into := range []*[]time.Duration{&lost, &ran, &next} {
			d, err := time.ParseDuration(string(m[i+1]))
			if err != nil {
				return err
			}
			*into = append(*into, d)
		}
	}
	seconds := func(d []time.Duration) string { return fmt.Sprintf("%.1f s", median(d).Seconds()) }
	b.add("a host is cut off, until the controller has given it up", seconds(lost), "-", "", "<= 5 s")
	b.add("until its own ranks have ended", seconds(ran), "-", "", "<= 8 s")
	b.add("until the next attempt's first rank runs, image cached", seconds(next), "-", "", "<= 10 s")
	return nil
}
