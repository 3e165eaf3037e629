package reference

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// rules are the regular expressions of the grammar.
type rules struct{ repository, tag, host, imageID, scheme, engine, name, digest *regexp.Regexp }

// grammar is that of github.com/distribution/reference, which go-containerregistry's
// pkg/name follows only in part: that one takes "a//b" and "-a" for repositories. It
// is compiled when it is needed, because that takes as long as all other packages'
// initialisation.
var grammar = sync.OnceValue(func() rules {
	const part = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
	const label = `[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?`
	return rules{
		repository: regexp.MustCompile(`^` + part + `(?:/` + part + `)*$`),
		tag:        regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`),
		host:       regexp.MustCompile(`^` + label + `(?:\.` + label + `)*$`),
		imageID:    regexp.MustCompile(`^[a-f0-9]{64}$`),
		scheme:     regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`),
		// Names and IDs, and nothing that looks like an option.
		engine: regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@\[\]-]*$`),
		// What image-spec's annotations.md and docker save put into files.
		name:   regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._:/@+-]*$`),
		digest: regexp.MustCompile(`^(?:sha256|sha512):|^[a-z0-9]+:[0-9a-fA-F]{32,}$`),
	}
})

const (
	maxRepository = 255  // as Docker
	maxTag        = 128  // as Docker
	maxLength     = 4096 // bytes, of everything
)

// Parse parses a reference:
//
//	[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]                     as docker pull
//	docker://[USER@][HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]     as Enroot and Pyxis
//	[docker://][USER@]HOST#REPOSITORY[:TAG][@DIGEST]            as Enroot and Pyxis
//	dockerd://IMAGE  podman://IMAGE                             engines of this machine
//	oci:DIR[:TAG][@DIGEST]  oci-archive:FILE[:TAG][@DIGEST]     as skopeo
//	docker-archive:FILE[:TAG]                                   made by docker save
//	/PATH  ./PATH  ../PATH  ~/PATH  NAME.sqsh  NAME.squashfs    an image file or a rootfs directory
//
// Without a host an image is on Docker Hub, without tag and digest its tag is
// latest. Errors are usage errors and show what to write instead.
func Parse(s string) (Reference, error) {
	r, err := parse(s)
	if err == nil {
		return r, nil
	}
	hint := "write for example: debian:12, nvcr.io/nvidia/pytorch:25.02-py3, oci:DIR:TAG or ./image.sqsh"
	if e, ok := errors.AsType[*mistake](err); ok && e.hint != "" {
		hint = e.hint
	}
	return Reference{}, fault.Usage(fmt.Errorf("parse image reference %.200q: %w", s, err), hint)
}

// mistake is an error that knows how it should have been written.
type mistake struct{ what, hint string }

func (m *mistake) Error() string { return m.what }

func wrong(hint, format string, args ...any) error {
	return &mistake{fmt.Sprintf(format, args...), hint}
}

func parse(s string) (Reference, error) {
	if s == "" {
		return Reference{}, wrong("", "it is empty")
	}
	if len(s) > maxLength {
		return Reference{}, wrong("", "it has %d bytes, more than %d", len(s), maxLength)
	}
	if i := strings.IndexFunc(s, isControl); i >= 0 {
		return Reference{}, wrong("", "it has the control character %q at byte %d", s[i], i)
	}
	if s != strings.TrimSpace(s) {
		return Reference{}, wrong("leave away the blanks around it", "it begins or ends with a blank")
	}
	if scheme, rest, ok := strings.Cut(s, "://"); ok && grammar().scheme.MatchString(scheme) {
		return parseScheme(scheme, rest)
	}
	transport, rest, _ := strings.Cut(s, ":")
	switch transport {
	case "oci":
		return parseFile(Layout, transport, rest)
	case "oci-archive":
		return parseFile(OCIArchive, transport, rest)
	case "docker-archive":
		return parseFile(DockerArchive, transport, rest)
	case "docker-daemon":
		return Reference{}, wrong("write dockerd://"+rest, "docker-daemon: is skopeo's word for it")
	case "containers-storage":
		return Reference{}, wrong("write podman://IMAGE", "containers-storage: is skopeo's word for it")
	}
	if s == "~" {
		s = "~/" // the shell's name for the home directory
	}
	if isPath(s) {
		return Reference{Kind: Path, Path: s}, nil
	}
	if strings.HasSuffix(s, ".tar") {
		return Reference{}, wrong(fmt.Sprintf("write docker-archive:%s or oci-archive:%s", s, s), "a tar file needs a word for what is in it")
	}
	return parseRegistry(s, false)
}

func isControl(c rune) bool { return c < 0x20 || c == 0x7f }

// isPath says whether s is a path by its looks. A name such as "torch" is an image
// of Docker Hub even where a file is called so.
func isPath(s string) bool {
	for _, begin := range []string{"/", "./", "../", "~/"} {
		if strings.HasPrefix(s, begin) {
			return true
		}
	}
	return s == "." || s == ".." || strings.HasSuffix(s, ".sqsh") || strings.HasSuffix(s, ".squashfs")
}

func parseScheme(scheme, rest string) (Reference, error) {
	switch scheme {
	case "docker":
		return parseRegistry(rest, true)
	case "dockerd":
		return parseEngine(Docker, scheme, rest)
	case "podman":
		return parseEngine(Podman, scheme, rest)
	case "http", "https":
		return Reference{}, wrong("write docker://"+rest, "%s:// says how to reach a registry, which is for the configuration to say", scheme)
	case "file":
		return Reference{}, wrong("write "+rest, "a file is named by its path alone")
	case "oci":
		return Reference{}, wrong("write oci:DIR:TAG for a directory, docker://HOST/REPOSITORY:TAG for a registry", "oci:// is not a scheme")
	}
	return Reference{}, wrong("schemes are docker://, dockerd:// and podman://; files are named oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE and ./FILE.sqsh",
		"unknown scheme %q", scheme+"://")
}

func parseEngine(kind Kind, scheme, image string) (Reference, error) {
	if !grammar().engine.MatchString(image) {
		return Reference{}, wrong("write for example "+scheme+"://debian:12", "%q is not the name of an image", image)
	}
	return Reference{Kind: kind, Image: image}, nil
}

// parseFile parses what follows "oci:". As in skopeo the path ends at the first
// colon, because the name behind it may have colons and slashes itself.
func parseFile(kind Kind, transport, s string) (Reference, error) {
	example := fmt.Sprintf("write for example %s:./images:debian-12", transport)
	s, digest, err := cutDigest(s)
	if err != nil {
		return Reference{}, err
	}
	if digest != "" && kind == DockerArchive {
		return Reference{}, wrong("write docker-archive:FILE:TAG", "a Docker archive has no digests")
	}
	path, tag, tagged := strings.Cut(s, ":")
	if path == "" {
		return Reference{}, wrong(example, "the path is missing")
	}
	if tagged && !grammar().name.MatchString(tag) {
		return Reference{}, wrong(example, "%q is not a tag (and the path may hold no colon)", tag)
	}
	return Reference{Kind: kind, Path: path, Tag: tag, Digest: digest}, nil
}

// parseRegistry parses an image of a registry. Without scheme and '#' what stands
// before an '@' is no user: debian@latest is meant to be a tag.
func parseRegistry(s string, scheme bool) (Reference, error) {
	s, digest, err := cutDigest(s)
	if err != nil {
		return Reference{}, err
	}
	r := Reference{Kind: Registry, Host: DockerHub, Digest: digest}
	head, image, explicit := strings.Cut(s, "#")
	if at := strings.LastIndexByte(s, '@'); at >= 0 && !scheme && !explicit {
		return Reference{}, noDigest(s[:at], s[at+1:])
	}
	if explicit {
		if strings.Contains(image, "#") {
			return Reference{}, wrong("write HOST#REPOSITORY:TAG", "it has more than one #")
		}
		if r.User, r.Host, err = cutUser(head); err != nil {
			return Reference{}, err
		}
	} else {
		first, rest, more := strings.Cut(s, "/")
		if r.User, first, err = cutUser(first); err != nil {
			return Reference{}, err
		}
		image = first
		switch {
		case more && isHost(first):
			r.Host, image = first, rest
		case more:
			image = first + "/" + rest
		}
	}
	if at := strings.LastIndexByte(image, '@'); at >= 0 { // image is the end of s
		return Reference{}, noDigest(s[:strings.LastIndexByte(s, '@')], image[at+1:])
	}
	if r.Host, err = canonicalHost(r.Host); err != nil {
		return Reference{}, err
	}
	var tagged bool
	r.Repository, r.Tag, tagged = strings.Cut(image, ":")
	if tagged && (len(r.Tag) > maxTag || !grammar().tag.MatchString(r.Tag)) {
		return Reference{}, wrong("a tag has letters, digits, _ . and -, begins with none of . and -, and has at most 128: debian:12-slim", "%.200q is not a tag", r.Tag)
	}
	if err := checkRepository(r.Repository); err != nil {
		return Reference{}, err
	}
	if r.Host == DockerHub && !strings.Contains(r.Repository, "/") {
		r.Repository = "library/" + r.Repository
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

// noDigest says what may stand behind an '@'. What looks like a password there is
// that: an image has no ':' before a host.
func noDigest(image, digest string) error {
	if host, _, more := strings.Cut(digest, "/"); image == "" || more && isHost(host) {
		if _, _, err := cutUser(image + "@"); err != nil {
			return err
		}
		return wrong(fmt.Sprintf("write docker://%s@%s", image, digest), "a user needs docker:// before it")
	}
	return wrong("write "+image+"@sha256:... for a digest, IMAGE:TAG for a tag, docker://USER@IMAGE for a user", "%.200q behind the @ is not a digest", digest)
}

// cutDigest takes "@DIGEST" off the end. What stands behind an '@' and does not
// look like a digest is left: in USER@IMAGE:TAG it is the image.
func cutDigest(s string) (rest string, d oci.Digest, err error) {
	i := strings.LastIndexByte(s, '@')
	if i < 0 || !grammar().digest.MatchString(s[i+1:]) {
		return s, "", nil
	}
	d, err = oci.ParseDigest(s[i+1:])
	if err != nil {
		return "", "", wrong("write IMAGE@sha256: and 64 hexadecimal digits, all of them", "%v", err)
	}
	if j := strings.LastIndexByte(s[:i], '@'); j >= 0 && grammar().digest.MatchString(s[j+1:i]) {
		return "", "", wrong("write IMAGE@DIGEST", "it has more than one digest")
	}
	return s[:i], d, nil
}

// cutUser takes "USER@" off the begin. A user may be a mail address.
func cutUser(s string) (user, rest string, err error) {
	i := strings.LastIndexByte(s, '@')
	if i < 0 {
		return "", s, nil
	}
	user, rest = s[:i], s[i+1:]
	switch {
	case user == "":
		return "", "", wrong("write USER@HOST/REPOSITORY:TAG", "the user before the @ is missing")
	case strings.Contains(user, ":"):
		// Arguments are seen by everybody in ps and stay in the accounting.
		return "", "", wrong("log in once with docker login or podman login, and leave away the password", "a password has no place in a reference")
	case strings.ContainsAny(user, " \\\"'`"):
		return "", "", wrong("write USER@HOST/REPOSITORY:TAG", "%q is not the name of a user", user)
	}
	return user, rest, nil
}

// isHost says whether the first part of a name is a host and not a part of the
// repository, as Docker decides it: repositories have no upper-case letters.
func isHost(s string) bool {
	return strings.ContainsAny(s, ".:") || s == "localhost" || s != strings.ToLower(s)
}

func canonicalHost(s string) (string, error) {
	const example = "write for example registry.example.org:5000/team/torch:1"
	if s == "" {
		return "", wrong(example, "the registry's host is missing")
	}
	port, hasPort := "", false
	if strings.HasPrefix(s, "[") { // an IPv6 address
		end := strings.IndexByte(s, ']')
		if end < 0 || !isIPv6(s[1:end]) {
			return "", wrong(example, "%q is not a host", s)
		}
		if port, hasPort = strings.CutPrefix(s[end+1:], ":"); !hasPort && port != "" {
			return "", wrong(example, "%q is not a host", s)
		}
	} else {
		var host string
		if host, port, hasPort = strings.Cut(s, ":"); !grammar().host.MatchString(host) {
			return "", wrong(example, "%.200q is not a host", host)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0 || port[0] == '0') {
		return "", wrong(example, "%q is not a port", port)
	}
	switch s = strings.ToLower(s); s {
	case "index.docker.io", "registry-1.docker.io", DockerHub:
		return DockerHub, nil
	}
	return s, nil
}

func isIPv6(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is6() && a.Zone() == ""
}

func checkRepository(s string) error {
	switch {
	case s == "":
		return wrong("write for example registry.example.org:5000/team/torch:1", "the name of the image is missing")
	case len(s) > maxRepository:
		return wrong("", "the name of the image has %d bytes, more than %d", len(s), maxRepository)
	case grammar().repository.MatchString(s) && grammar().imageID.MatchString(s):
		return wrong("write NAME@sha256:"+s+" for a digest, dockerd://"+s+" for an image of the engine", "64 hexadecimal digits are not a name")
	case grammar().repository.MatchString(s):
		return nil
	case s != strings.ToLower(s) && grammar().repository.MatchString(strings.ToLower(s)):
		return wrong("write "+strings.ToLower(s), "the name of the image %q has upper-case letters", s)
	}
	return wrong("a name is lower-case letters and digits, with single . _ or - between them and / between its parts: team/torch", "%.200q is not the name of an image", s)
}
