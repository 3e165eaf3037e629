package cli_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/gangway-hpc/gangway/internal/cli"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := (&cli.Env{Program: "toy", Stderr: &out}).Logger()
	log.Info("nobody sees this")
	log.Warn("the wind turns")
	log.With("host", "a.example").Warn("asked to wait", "dur", "5 s", "err", errors.New("bell\a"))
	log.WithGroup("g").Error("it sinks", "n", 3)
	want := `toy: warning: the wind turns
toy: warning: asked to wait: host=a.example dur="5 s" err="bell\a"
toy: error: it sinks: n=3
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
