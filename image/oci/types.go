package oci

import "time"

// Descriptor points at bytes (image-spec descriptor.md).
type Descriptor struct {
	MediaType    string            `json:"mediaType,omitempty"`
	Digest       Digest            `json:"digest"`
	Size         int64             `json:"size"` // bytes
	URLs         []string          `json:"urls,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Data         []byte            `json:"data,omitempty"` // the bytes themselves, where they are small
	Platform     *Platform         `json:"platform,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
}

// Platform says what an image runs on (image-spec image-index.md).
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"` // as Go names it: amd64, arm64
	Variant      string `json:"variant,omitempty"`
	OSVersion    string `json:"os.version,omitempty"`
}

// Manifest describes one image: a configuration and layers, lowest first.
type Manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType,omitempty"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        Descriptor        `json:"config"`
	Layers        []Descriptor      `json:"layers"`
	Subject       *Descriptor       `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// Index lists manifests, one a platform (image-spec image-index.md; Docker's
// manifest list has the same fields).
type Index struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType,omitempty"`
	Manifests     []Descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// Config is what an image says about how to run it (image-spec config.md). Fields
// that could steer the host have no place here.
type Config struct {
	Platform
	Created                      time.Time
	Author                       string
	Env                          []string // NAME=value
	Entrypoint, Cmd              []string
	WorkingDir, User, StopSignal string
	Labels                       map[string]string // shown, never obeyed
	DiffIDs                      []Digest          // of the uncompressed layers, lowest first
}
