package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// MaxFile is the size in bytes of the largest specification that is read. The one of
// 8 GPUs with 7 MIG instances each has some 100 KiB.
const MaxFile = 1 << 20

// Parse reads one specification, in JSON where it begins with a brace and else in YAML,
// and checks it as [Validate] does. Unknown and repeated fields are errors, since what
// they would have said cannot be done. Of larger data than [MaxFile] nothing is read.
func Parse(data []byte) (*specs.Spec, error) {
	if len(data) > MaxFile {
		return nil, fmt.Errorf("it has more than %d bytes", MaxFile)
	}
	var spec *specs.Spec
	var err error
	if text := bytes.TrimLeft(data, " \t\r\n"); len(text) > 0 && text[0] == '{' {
		spec, err = parseJSON(text)
	} else {
		spec, err = parseYAML(data)
	}
	if err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, errors.New("it is empty")
	}
	if err := Validate(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

func parseYAML(data []byte) (spec *specs.Spec, err error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&spec); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second YAML document follows the first")
	}
	return spec, nil
}

func parseJSON(data []byte) (spec *specs.Spec, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&spec); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	end := dec.InputOffset()
	if rest := bytes.TrimSpace(data[end:]); len(rest) > 0 {
		return nil, fmt.Errorf("read JSON: %d bytes follow the end of the object", len(rest))
	}
	if err := checkKeys(data[:end]); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return spec, nil
}

// level is an object or array that is being read.
type level struct {
	keys map[string]bool
	free bool // annotations: keys are the vendor's
}

// checkKeys refuses what encoding/json lets through: a key twice, of which it takes the
// last while others take the first, and a field with other capitals. The data are valid
// JSON.
func checkKeys(data []byte) error {
	var stack []level
	last := "" // the key before this place, in this object
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			stack = append(stack, level{free: last == "annotations"})
			last = ""
		case '}', ']':
			stack = stack[:len(stack)-1]
			last = ""
		case '"':
			begin := i
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			if rest := bytes.TrimLeft(data[i+1:], " \t\r\n"); len(rest) == 0 || rest[0] != ':' {
				continue // no key, a value
			}
			if last = string(data[begin+1 : i]); strings.Contains(last, `\`) {
				if err := json.Unmarshal(data[begin:i+1], &last); err != nil {
					return err
				}
			}
			if err := stack[len(stack)-1].enter(last); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter takes note of a key.
func (l *level) enter(key string) error {
	if l.keys[key] {
		return fmt.Errorf("the key %q stands twice in one object", shorten(key))
	}
	if l.keys == nil {
		l.keys = map[string]bool{}
	}
	l.keys[key] = true
	if l.free || slices.Contains(fields, key) {
		return nil
	}
	for _, field := range fields {
		if strings.EqualFold(key, field) {
			return fmt.Errorf("unknown field %q: it is written %q", key, field)
		}
	}
	return nil
}

// fields are the names that the format gives.
var fields = []string{
	"additionalGids", "annotations", "args", "cdiVersion", "closID", "containerEdits", "containerPath",
	"deviceNodes", "devices", "enableMonitoring", "env", "fileMode", "gid", "hookName", "hooks",
	"hostInterfaceName", "hostPath", "intelRdt", "kind", "l3CacheSchema", "major", "memBwSchema", "minor",
	"mounts", "name", "netDevices", "options", "path", "permissions", "schemata", "timeout", "type", "uid",
}
