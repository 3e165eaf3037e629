package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReference: docs/reference is what the command tables say. UPDATE_SCRIPTS=1 writes it anew.
func TestReference(t *testing.T) {
	watchSources(t)
	bin := t.TempDir()
	cmd := exec.Command("go", "build", "-o", bin, "../cmd/gangway", "../cmd/gangwayd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	if os.Getenv("UPDATE_SCRIPTS") != "" {
		dir = "../docs/reference"
	}
	for _, name := range []string{"gangway", "gangwayd"} {
		cmd := exec.Command(filepath.Join(bin, name), "man", "--markdown", dir)
		// What a default is does not hang on who asks.
		cmd.Env = []string{"HOME=/home/user", "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got, err := os.ReadFile(filepath.Join(dir, name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile("../docs/reference/" + name + ".md")
		if err != nil || string(got) != string(want) {
			t.Errorf("docs/reference/%s.md is not what the commands say (%v): UPDATE_SCRIPTS=1 go test ./test -run TestReference", name, err)
		}
	}
}
