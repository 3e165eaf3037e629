package reference

import (
	"strings"

	"github.com/gangway-hpc/gangway/image/oci"
)

// Kind says where an image comes from, and so which fields of a Reference count.
type Kind uint8

// The kinds of references.
const (
	Registry      Kind = iota + 1 // a registry: User, Host, Repository, Tag, Digest
	Docker                        // the Docker engine of this machine: Image
	Podman                        // the Podman of this user: Image
	Layout                        // an OCI image layout, a directory: Path, Tag, Digest
	OCIArchive                    // the same as a tar file: Path, Tag, Digest
	DockerArchive                 // a tar file of docker save: Path, Tag
	Path                          // an image file or a rootfs directory: Path
)

// String returns the kind as error messages name it.
func (k Kind) String() string {
	switch k {
	case Registry:
		return "registry"
	case Docker:
		return "Docker engine"
	case Podman:
		return "Podman"
	case Layout:
		return "OCI layout"
	case OCIArchive:
		return "OCI archive"
	case DockerArchive:
		return "Docker archive"
	case Path:
		return "path"
	default:
		return "unknown"
	}
}

// DockerHub is the Host of images of Docker Hub, whatever alias was typed.
const DockerHub = "docker.io"

// Reference is a parsed reference. Two References are equal exactly if their
// canonical forms are.
type Reference struct {
	Kind Kind
	// User picks among the credentials for Host; "" takes the first.
	User string
	// Host is HOST[:PORT], in lower case. It is DockerHub for Docker Hub.
	Host string
	// Repository is the path on Host, with "library/" where Docker Hub wants it.
	Repository string
	// Tag is "latest" where a registry reference has neither tag nor digest. In a
	// layout or an archive it is the name in there, which may be as long as
	// "docker.io/library/debian:12"; "" means the only image.
	Tag string
	// Digest wins over Tag, which is then kept for people to read.
	Digest oci.Digest
	// Image is what the engine knows: a name with or without tag, or an ID.
	Image string
	// Path is as it was typed; "~/" is not expanded.
	Path string
}

// String returns the canonical form. Parse takes it back.
func (r Reference) String() string {
	switch r.Kind {
	case Registry:
		return "docker://" + r.user() + r.Host + r.separator() + r.Repository + r.suffix()
	case Docker:
		return "dockerd://" + r.Image
	case Podman:
		return "podman://" + r.Image
	case Layout:
		return "oci:" + r.Path + r.suffix()
	case OCIArchive:
		return "oci-archive:" + r.Path + r.suffix()
	case DockerArchive:
		return "docker-archive:" + r.Path + r.suffix()
	default:
		return r.Path
	}
}

func (r Reference) user() string {
	if r.User == "" {
		return ""
	}
	return r.User + "@"
}

// separator is '#' where the host would be taken for a part of the repository.
func (r Reference) separator() string {
	if isHost(r.Host) {
		return "/"
	}
	return "#"
}

func (r Reference) suffix() string {
	s := ""
	if r.Tag != "" {
		s = ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + string(r.Digest)
	}
	return s
}

// Familiar returns the form for lists and messages: "torch:1" for
// "docker://docker.io/library/torch:1". It leaves out the user and most of a digest,
// so it does not always parse to r.
func (r Reference) Familiar() string {
	if r.Kind != Registry {
		if r.Digest != "" {
			short := r
			short.Digest = ""
			return short.String() + shortDigest(r.Digest)
		}
		return r.String()
	}
	name := r.Host + r.separator() + r.Repository
	if r.Host == DockerHub {
		name = strings.TrimPrefix(r.Repository, "library/")
	}
	if r.Tag != "" {
		name += ":" + r.Tag
	}
	if r.Digest != "" {
		name += shortDigest(r.Digest)
	}
	return name
}

func shortDigest(d oci.Digest) string { return "@" + d.Algorithm() + ":" + d.Short() }
