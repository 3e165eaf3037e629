package user

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// maxAnswer bounds what a hook may write to stdout, in bytes.
const maxAnswer = 1 << 20

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// decode reads an answer. An unknown field is an error: it is a misspelt one, or one of
// a later version, and silence would hide that it has no effect.
func decode(b []byte, phase Phase) (*Answer, error) {
	a := &Answer{}
	if len(bytes.TrimSpace(b)) == 0 {
		return a, nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(a); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something after the JSON value")
	}
	if a.Version != Version {
		return nil, fmt.Errorf("its version is %d, and this is version %d", a.Version, Version)
	}
	if a.Edits == nil || isZero(a.Edits) {
		a.Edits = nil
		return a, nil
	}
	if phase != Prepare {
		return nil, fmt.Errorf("it has edits, and in the phase %s it is too late for them", phase)
	}
	return a, check(a.Edits)
}

// check refuses edits that say nothing sensible. Who applies them looks at the rest.
func check(e *cdi.ContainerEdits) error {
	if len(e.Hooks) > 0 {
		return errors.New("it has hooks; a hook may not bring others")
	}
	for _, v := range e.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.Contains(v, "\x00") {
			return fmt.Errorf("%q in env is not NAME=VALUE", shorten(v))
		}
	}
	for _, m := range e.Mounts {
		if m == nil || !isPath(m.ContainerPath) || m.Type != "tmpfs" && !isPath(m.HostPath) {
			return fmt.Errorf("a mount has no absolute hostPath and containerPath without dots: %s", show(m))
		}
	}
	for _, d := range e.DeviceNodes {
		if d == nil || !isPath(d.Path) || d.HostPath != "" && !isPath(d.HostPath) {
			return fmt.Errorf("a device has no absolute path without dots: %s", show(d))
		}
	}
	return nil
}

// show prints a part of edits for people.
func show(v any) string {
	b, _ := json.Marshal(v)
	return shorten(string(b))
}

func isPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}

func isZero(e *cdi.ContainerEdits) bool {
	return len(e.Env)+len(e.DeviceNodes)+len(e.NetDevices)+len(e.Hooks)+len(e.Mounts)+len(e.AdditionalGIDs) == 0 && e.IntelRdt == nil
}

// merge adds the edits of b to a; of Intel's RDT there can be one only, the later.
func merge(a, b *cdi.ContainerEdits) {
	a.Env = append(a.Env, b.Env...)
	a.DeviceNodes = append(a.DeviceNodes, b.DeviceNodes...)
	a.NetDevices = append(a.NetDevices, b.NetDevices...)
	a.Mounts = append(a.Mounts, b.Mounts...)
	a.AdditionalGIDs = append(a.AdditionalGIDs, b.AdditionalGIDs...)
	if b.IntelRdt != nil {
		a.IntelRdt = b.IntelRdt
	}
}

// prefixed puts a hook's name before what it said, and keeps notes to a line each and
// to a number that a person reads.
func prefixed(hook string, notes []string) []string {
	const most = 20
	var all []string
	for i, note := range notes {
		if i == most {
			all = append(all, fmt.Sprintf("%s: %d more lines", filepath.Base(hook), len(notes)-most))
			break
		}
		all = append(all, filepath.Base(hook)+": "+shorten(note))
	}
	return all
}

// shorten makes a line of what a program said, at most 200 bytes.
func shorten(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
