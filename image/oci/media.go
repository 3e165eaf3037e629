package oci

import (
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// The media types of documents and layers, OCI's and Docker's.
const (
	MediaTypeIndex          = "application/vnd.oci.image.index.v1+json"
	MediaTypeManifest       = "application/vnd.oci.image.manifest.v1+json"
	MediaTypeConfig         = "application/vnd.oci.image.config.v1+json"
	MediaTypeLayer          = "application/vnd.oci.image.layer.v1.tar" // and +gzip, +zstd
	MediaTypeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	MediaTypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	MediaTypeDockerConfig   = "application/vnd.docker.container.image.v1+json"
	MediaTypeDockerLayer    = "application/vnd.docker.image.rootfs.diff.tar" // and .gzip, .zstd

	mediaTypeSchema1    = "application/vnd.docker.distribution.manifest.v1" // and +json, +prettyjws
	mediaTypeForeign    = "application/vnd.docker.image.rootfs.foreign.diff.tar"
	mediaTypeNonDistrib = "application/vnd.oci.image.layer.nondistributable.v1.tar"
)

// Limits of documents. Registries refuse manifests of more than 4 MiB.
const (
	MaxDocument  = 4 << 20 // bytes of an index, a manifest or a configuration
	maxLayers    = 1000    // Docker and overlayfs stop far below
	maxManifests = 1000
	maxLayerSize = 1 << 40 // bytes
)

// Kind says what a document is.
type Kind uint8

// The kinds of documents that a reference may lead to.
const (
	KindIndex    Kind = iota + 1 // DecodeIndex takes it
	KindManifest                 // DecodeManifest takes it
)

// baseType returns a media type without parameters, in lower case.
func baseType(s string) string {
	if t, _, err := mime.ParseMediaType(s); err == nil {
		return t
	}
	return strings.ToLower(strings.TrimSpace(s))
}

// kindOfType returns the kind that a media type says, or 0 where it says nothing:
// registries and proxies send "application/json" and worse.
func kindOfType(mediaType string) Kind {
	switch baseType(mediaType) {
	case MediaTypeIndex, MediaTypeDockerList:
		return KindIndex
	case MediaTypeManifest, MediaTypeDockerManifest:
		return KindManifest
	}
	return 0
}

// KindOf says what raw is. mediaType is what the descriptor or the registry says
// of it and may be empty; where it is known it must agree with what is inside.
func KindOf(raw []byte, mediaType string) (Kind, error) {
	if err := checkSchema1(mediaType); err != nil {
		return 0, err
	}
	p, err := decodeProbe(raw)
	if err != nil {
		return 0, err
	}
	kind, err := p.kind()
	if err != nil {
		return 0, err
	}
	if said := kindOfType(mediaType); said != 0 && said != kind {
		return 0, fmt.Errorf("media type %s does not fit what is inside", baseType(mediaType))
	}
	return kind, nil
}

func checkSchema1(mediaType string) error {
	if !strings.HasPrefix(baseType(mediaType), mediaTypeSchema1) {
		return nil
	}
	return &fault.Error{
		What: errors.New("manifest of schema 1: Docker's format of before 2016 is not supported"),
		Hint: "push the image again with a current docker, podman or skopeo",
	}
}

// checkLayerType refuses layers that cannot be a part of a container here.
func checkLayerType(s string) error {
	t := baseType(s)
	for base, separator := range map[string]string{MediaTypeLayer: "+", MediaTypeDockerLayer: "."} {
		compression, ok := strings.CutPrefix(t, base)
		if ok && (compression == "" || compression == separator+"gzip" || compression == separator+"zstd") {
			return nil
		}
	}
	e := &fault.Error{What: fmt.Errorf("media type %.200q is unknown", s)}
	switch {
	case strings.HasSuffix(t, "+encrypted"):
		e.What = fmt.Errorf("it is encrypted (%s)", t)
		e.Hint = "decrypt the image first: skopeo copy --decryption-key KEY docker://IMAGE oci:DIR:TAG"
	case strings.HasPrefix(t, mediaTypeForeign), strings.HasPrefix(t, mediaTypeNonDistrib):
		e.What = fmt.Errorf("it is not distributed with the image (%s)", t)
		e.Hint = "ask who made the image to push it with all its layers; such layers are Windows' as a rule"
	case strings.HasPrefix(t, MediaTypeLayer), strings.HasPrefix(t, MediaTypeDockerLayer):
		e.What = fmt.Errorf("the compression of media type %.200q is unknown", s)
		e.Hint = "push the image again with layers compressed by gzip or zstd"
	default:
		e.Hint = "a layer of a container image is " + MediaTypeLayer + ", +gzip or +zstd; check that the reference names an image"
	}
	return e
}

// checkConfigType refuses artefacts: Helm charts, SBOMs, signatures, models. What has
// an image's configuration is an image, whatever else it is called.
func checkConfigType(m Manifest) error {
	switch t := baseType(m.Config.MediaType); {
	case t == MediaTypeConfig, t == MediaTypeDockerConfig:
		return nil
	case m.ArtifactType != "":
		return artefact(m.ArtifactType)
	default:
		return artefact(m.Config.MediaType)
	}
}

func artefact(kind string) error {
	return &fault.Error{
		What: fmt.Errorf("not a container image but an artefact of type %.200q", kind),
		Hint: "check the reference; artefacts are fetched with: oras pull REFERENCE",
	}
}
