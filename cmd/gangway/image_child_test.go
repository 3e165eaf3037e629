package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestOutcome: what callers look for in an error is in it still when it has come from a
// child.
func TestOutcome(t *testing.T) {
	told := func(err error) error {
		b, fail := json.Marshal(newOutcome(layer.Info{Entries: 7}, err))
		var o outcome
		if fail = errors.Join(fail, json.Unmarshal(b, &o)); fail != nil {
			t.Fatal(fail)
		}
		if o.Info.Entries != 7 {
			t.Errorf("%v: lost what the layer is: %+v", err, o.Info)
		}
		return o.err()
	}
	if err := told(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	for _, known := range append(image.TaskErrors(), syscall.ENOSPC, syscall.EIO) {
		err := told(fmt.Errorf("write it: %w", known))
		if !errors.Is(err, known) || err.Error() != "write it: "+known.Error() {
			t.Errorf("%v became %v", known, err)
		}
	}
	limit := &layer.LimitError{}
	if got, ok := errors.AsType[*layer.LimitError](told(fmt.Errorf("convert: %w", limit))); !ok || *got != *limit {
		t.Errorf("the limit became %v", got)
	}
	f, ok := errors.AsType[*fault.Error](told(&fault.Error{What: syscall.EDQUOT, Cause: "a quota", Hint: "remove something"}))
	if !ok || f.Cause != "a quota" || f.Hint != "remove something" || !errors.Is(f, syscall.EDQUOT) {
		t.Errorf("the fault became %+v", f)
	}
}
