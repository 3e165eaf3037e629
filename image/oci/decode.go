package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// probe is what tells the documents apart.
type probe struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Manifests     json.RawMessage `json:"manifests"`
	Config        json.RawMessage `json:"config"`
	Layers        json.RawMessage `json:"layers"`
	FSLayers      json.RawMessage `json:"fsLayers"`
}

func decodeProbe(raw []byte) (p probe, err error) {
	if err := decodeStrict(raw, &p); err != nil {
		return p, err
	}
	if p.SchemaVersion == 1 || present(p.FSLayers) {
		return p, checkSchema1(mediaTypeSchema1)
	}
	return p, checkSchema1(p.MediaType)
}

// present says whether a field is there. null is nothing to any reader, and what Go
// writes for an empty list.
func present(raw json.RawMessage) bool { return raw != nil && string(raw) != "null" }

// kind refuses documents that could be taken for either (CVE-2021-41190).
func (p probe) kind() (Kind, error) {
	manifest := present(p.Config) || present(p.Layers)
	kind := Kind(0)
	switch {
	case present(p.Manifests) && manifest:
		return 0, errors.New("it is an index and a manifest at once, so that readers could take it for either")
	case manifest:
		kind = KindManifest
	case p.Manifests != nil:
		kind = KindIndex
	default:
		return 0, errors.New("it is neither an index nor a manifest of an image")
	}
	if p.SchemaVersion != 2 {
		return 0, fmt.Errorf("schemaVersion is %d, not 2", p.SchemaVersion)
	}
	if said := kindOfType(p.MediaType); p.MediaType != "" && said != kind {
		return 0, fmt.Errorf("its mediaType %.200q does not fit what is inside", p.MediaType)
	}
	return kind, nil
}

func decodeAs(raw []byte, want Kind, v any) error {
	p, err := decodeProbe(raw)
	if err != nil {
		return err
	}
	if kind, err := p.kind(); err != nil {
		return err
	} else if kind != want {
		return errors.New("it is " + map[Kind]string{KindIndex: "an index, not a manifest", KindManifest: "a manifest, not an index"}[kind])
	}
	return unmarshal(raw, v)
}

// unmarshal is json.Unmarshal with errors that do not speak of Go's types.
func unmarshal(raw []byte, v any) error {
	err := json.Unmarshal(raw, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%q may not be a %s", wrong.Field, wrong.Value)
	}
	return err
}

// broken says what to do about a document that is none, where nobody knows better.
func broken(err error) error {
	if _, known := errors.AsType[*fault.Error](err); known {
		return err
	}
	return &fault.Error{What: err, Hint: "ask who publishes the image to build it anew, or take another one"}
}

// DecodeIndex decodes an index or Docker's manifest list. What the entries are is
// for Choose to see: an index may list what is no image.
func DecodeIndex(raw []byte) (Index, error) {
	var x Index
	if err := decodeAs(raw, KindIndex, &x); err != nil {
		return Index{}, broken(fmt.Errorf("decode index: %w", err))
	}
	if len(x.Manifests) > maxManifests {
		return Index{}, broken(fmt.Errorf("decode index: %d manifests are more than %d", len(x.Manifests), maxManifests))
	}
	for i, d := range x.Manifests {
		if err := d.check(maxLayerSize); err != nil {
			return Index{}, broken(fmt.Errorf("decode index: manifest %d of %d: %w", i+1, len(x.Manifests), err))
		}
	}
	return x, nil
}

// DecodeManifest decodes the manifest of a container image. It refuses artefacts
// and layers that cannot be unpacked here.
func DecodeManifest(raw []byte) (Manifest, error) {
	var m Manifest
	if err := decodeAs(raw, KindManifest, &m); err != nil {
		return Manifest{}, broken(fmt.Errorf("decode manifest: %w", err))
	}
	if err := m.check(); err != nil {
		return Manifest{}, broken(fmt.Errorf("decode manifest: %w", err))
	}
	return m, nil
}

func (m Manifest) check() error {
	if err := checkConfigType(m); err != nil {
		return err
	}
	if err := m.Config.check(MaxDocument); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("%d layers are more than %d", len(m.Layers), maxLayers)
	}
	for i, d := range m.Layers {
		err := checkLayerType(d.MediaType)
		if err == nil {
			err = d.check(maxLayerSize)
		}
		if err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(m.Layers), err)
		}
	}
	return nil
}

// check proves a descriptor's form.
func (d Descriptor) check(most int64) error {
	if _, err := ParseDigest(string(d.Digest)); err != nil {
		return err
	}
	if d.Size <= 0 || d.Size > most {
		return fmt.Errorf("%s: size %d is not within 1 and %d", d.Digest, d.Size, most)
	}
	if d.Data != nil {
		if err := d.Verify(d.Data); err != nil {
			return fmt.Errorf("embedded data: %w", err)
		}
	}
	return nil
}

// Verify proves that raw are the bytes that the descriptor points at. A size of 0
// is not known and not checked. The digest must have been parsed.
func (d Descriptor) Verify(raw []byte) error {
	if d.Size != 0 && int64(len(raw)) != d.Size {
		return fmt.Errorf("verify %s: it has %d bytes, not %d", d.Digest, len(raw), d.Size)
	}
	h := d.Digest.Hash()
	h.Write(raw)
	if sum := h.Sum(nil); !d.Digest.Is(sum) {
		return fmt.Errorf("verify %s: its digest is %s:%x", d.Digest, d.Digest.Algorithm(), sum)
	}
	return nil
}

// rawConfig is a configuration as it is written down.
type rawConfig struct {
	Platform
	Created json.RawMessage `json:"created"`
	Author  string          `json:"author"`
	Config  struct {
		Env        []string          `json:"Env"`
		Entrypoint words             `json:"Entrypoint"`
		Cmd        words             `json:"Cmd"`
		WorkingDir string            `json:"WorkingDir"`
		User       string            `json:"User"`
		StopSignal string            `json:"StopSignal"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []Digest `json:"diff_ids"`
	} `json:"rootfs"`
}

// words is a list of words, or one word alone, as Docker still takes it.
type words []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *words) UnmarshalJSON(raw []byte) error {
	var one string
	if err := json.Unmarshal(raw, &one); err == nil && string(raw) != "null" {
		*w = words{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(w))
}

// DecodeConfig decodes the configuration of a container image.
func DecodeConfig(raw []byte) (Config, error) {
	var c rawConfig
	if err := decodeStrict(raw, &c); err != nil {
		return Config{}, broken(fmt.Errorf("decode image configuration: %w", err))
	}
	if err := c.check(); err != nil {
		return Config{}, broken(fmt.Errorf("decode image configuration: %w", err))
	}
	config := Config{
		Platform: c.Platform, Author: c.Author,
		Env: slices.DeleteFunc(c.Config.Env, isUnset), Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd,
		WorkingDir: c.Config.WorkingDir, User: c.Config.User, StopSignal: c.Config.StopSignal,
		Labels: c.Config.Labels, DiffIDs: c.RootFS.DiffIDs,
	}
	// It is only shown, and builders have written odd things, numbers too.
	var created string
	if json.Unmarshal(c.Created, &created) == nil {
		config.Created, _ = time.Parse(time.RFC3339Nano, created)
	}
	return config, nil
}

// isUnset says whether an entry of the environment sets nothing. Docker takes NAME
// without a value for a variable that is not there.
func isUnset(entry string) bool { return strings.IndexByte(entry, '=') < 1 }

func (c *rawConfig) check() error {
	for _, e := range c.Config.Env {
		if strings.Contains(e, "\x00") {
			return fmt.Errorf("environment %.100q has a NUL", e)
		}
	}
	texts := slices.Concat(c.Config.Entrypoint, c.Config.Cmd, []string{c.Config.WorkingDir, c.Config.User, c.Config.StopSignal})
	for _, s := range texts {
		if strings.Contains(s, "\x00") {
			return fmt.Errorf("%.100q has a NUL", s)
		}
	}
	if c.RootFS.Type != "" && c.RootFS.Type != "layers" {
		return fmt.Errorf("rootfs type %.100q is not layers", c.RootFS.Type)
	}
	if len(c.RootFS.DiffIDs) > maxLayers {
		return fmt.Errorf("%d layers are more than %d", len(c.RootFS.DiffIDs), maxLayers)
	}
	for i, d := range c.RootFS.DiffIDs {
		if _, err := ParseDigest(string(d)); err != nil {
			return fmt.Errorf("diff_id %d: %w", i+1, err)
		}
	}
	return nil
}

// CheckConfig proves that a configuration speaks of a manifest's layers. That the
// diff_ids are right is seen when the layers are read.
func CheckConfig(m Manifest, c Config) error {
	if len(m.Layers) != len(c.DiffIDs) {
		return fmt.Errorf("image configuration %s has %d diff_ids for %d layers", m.Config.Digest, len(c.DiffIDs), len(m.Layers))
	}
	return nil
}
