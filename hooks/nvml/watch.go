package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// beat is how often the helper gives a sign of life while nothing happens.
const beat = 2 * time.Second

// Watch calls each for every event of these GPUs, or of all, until ctx ends; then it
// returns nil. It uses a helper of its own, so that a question that hangs does not end it.
// With ErrHung the helper gave no sign of life for Options.StartTimeout; it is not started
// again.
func (c *Client) Watch(ctx context.Context, uuids []string, each func(Event)) error {
	args := append([]string{"-beat", beat.String(), "watch"}, uuids...)
	p, err := startProcess(c.opt, args...)
	if err != nil {
		return c.blame("events", absent(fmt.Errorf("%w: %w", ErrAbsent, err), ""))
	}
	defer func() {
		p.kill()
		p.isGone(200 * time.Millisecond)
	}()
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	silence := c.opt.StartTimeout + beat
	for {
		err := p.out.SetReadDeadline(time.Now().Add(silence))
		var line []byte
		if err == nil {
			line, err = readLine(p.lines)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return c.blame("events", fmt.Errorf("%w in %v", ErrHung, silence))
		}
		if err != nil {
			return c.blame("events", p.crash(err))
		}
		b, err := decodeBeat(line)
		switch {
		case err != nil:
			return c.blame("events", err)
		case b.Error != nil:
			return told("events", b.Error)
		case b.Event != nil:
			each(*b.Event)
		}
	}
}
