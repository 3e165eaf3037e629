package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// start measures what gangway costs before it does anything, against a program
// that is empty.
func (b *bench) start() error {
	src := filepath.Join(b.dir, "empty")
	if err := os.MkdirAll(src, 0o777); err != nil {
		return err
	}
	for name, text := range map[string]string{"main.go": "package main\n\nfunc main() {}\n", "go.mod": "module empty\n"} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	empty := filepath.Join(src, "empty")
	if _, err := b.command("go", "-C", src, "build", "-o", empty, "."); err != nil {
		return err
	}
	rounds := b.rounds
	defer func() { b.rounds = rounds }()
	b.rounds = 50 * rounds // a few milliseconds each
	us, them, err := b.pairs(
		func() (sample, error) { return b.command(b.gangway, "version") },
		func() (sample, error) { return b.command(empty) })
	if err != nil {
		return err
	}
	b.add("gangway version, wall", medianWall(us).String(), medianWall(them).String()+" (empty program)",
		fmt.Sprintf("%.2f", ratio(us, them)), "<= 2.5 x")
	return nil
}
