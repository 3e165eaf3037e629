package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	dockerHub = "docker.io"
	// hubServer is the name that docker login and helpers know Docker Hub by.
	hubServer = "https://index.docker.io/v1/"
	// tokenUser is the user that stands before an identity token in a helper.
	tokenUser = "<token>"
)

// configFile is what counts of config.json and auth.json.
type configFile struct {
	Auths       map[string]authEntry `json:"auths"`
	CredHelpers map[string]string    `json:"credHelpers"`
	CredsStore  string               `json:"credsStore"`
}

type authEntry struct {
	Auth          string `json:"auth"` // base64 of USER:PASSWORD
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func decodeConfig(raw []byte) (configFile, error) {
	var c configFile
	if err := json.Unmarshal(raw, &c); err != nil {
		// The texts of these name types and offsets; others might quote.
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return configFile{}, fmt.Errorf("it is not valid JSON at byte %d", syntax.Offset)
		}
		if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return configFile{}, fmt.Errorf("%s is a JSON %s at byte %d", typed.Field, kindOf(typed.Value), typed.Offset)
		}
		return configFile{}, errors.New("it is not valid JSON")
	}
	return c, nil
}

// kindOf leaves away the number in "number 12".
func kindOf(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	return kind
}

// canonical returns a host in lower case, and Docker Hub under one name.
func canonical(host string) string {
	switch host = strings.ToLower(host); host {
	case "index.docker.io", "registry-1.docker.io":
		return dockerHub
	}
	return host
}

// canonicalKey returns the key of an entry as HOST[:PORT][/PATH].
func canonicalKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimRight(key, "/")
	for _, api := range []string{"/v1", "/v2"} {
		key = strings.TrimSuffix(key, api)
	}
	host, path, found := strings.Cut(key, "/")
	if !found {
		return canonical(host)
	}
	return canonical(host) + "/" + path
}

// lookUp finds a key among those that mean the same. An exact one wins, then the
// first by name, so that the answer does not depend on the order of a map.
func lookUp[V any](m map[string]V, want string, canonicalKey func(string) string) (v V, ok bool) {
	if v, ok = m[want]; ok {
		return v, true
	}
	least := ""
	for key := range m {
		if canonicalKey(key) == want && (!ok || key < least) {
			least, ok = key, true
		}
	}
	return m[least], ok
}

// hostKey is canonicalKey for Docker's files, whose keys mean hosts alone.
func hostKey(key string) string {
	host, _, _ := strings.Cut(canonicalKey(key), "/")
	return host
}

// inContainers looks into auth.json of containers-auth.json(5): the longest key that
// is the repository or a namespace above it wins.
func (f *Finder) inContainers(ctx context.Context, p place, raw []byte, q query) (Credential, error) {
	keys := []string{q.host}
	if q.repository != "" {
		for i := 0; i < len(q.repository); i++ {
			if q.repository[i] == '/' {
				keys = append(keys, q.host+"/"+q.repository[:i])
			}
		}
		keys = append(keys, q.host+"/"+q.repository)
	}
	slices.Reverse(keys)
	return f.inConfig(ctx, p, raw, q, keys, canonicalKey)
}

// inDocker looks into Docker's config.json.
func (f *Finder) inDocker(ctx context.Context, p place, raw []byte, q query) (Credential, error) {
	return f.inConfig(ctx, p, raw, q, []string{q.host}, hostKey)
}

func (f *Finder) inConfig(ctx context.Context, p place, raw []byte, q query, keys []string, canonicalKey func(string) string) (Credential, error) {
	config, err := decodeConfig(raw)
	if err != nil {
		return Credential{}, &fault.Error{
			What: fmt.Errorf("read %s: %w", p.path, err),
			Hint: "mend it, or move it away and log in again: docker login or podman login",
		}
	}
	// As in Docker a helper comes before what the file itself holds.
	helper, ok := lookUp(config.CredHelpers, q.host, canonicalKey)
	if !ok {
		helper = config.CredsStore
	}
	if helper != "" {
		c, err := f.ask(ctx, helper, p.path, q)
		if err != nil || !c.IsZero() {
			return c, err
		}
	}
	for _, key := range keys {
		entry, ok := lookUp(config.Auths, key, canonicalKey)
		if !ok {
			continue
		}
		c, err := entry.credential(p.path)
		if err != nil {
			return Credential{}, fmt.Errorf("read %s: auths, %s: %w", p.path, key, err)
		}
		if !c.IsZero() && q.suits(c.Username) {
			return c, nil
		}
	}
	return Credential{}, nil
}

func (e authEntry) credential(path string) (Credential, error) {
	c := Credential{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken, Source: path + ", auths"}
	if e.Auth != "" {
		text, err := base64.StdEncoding.DecodeString(e.Auth)
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok {
			return Credential{}, &fault.Error{What: errors.New("auth is not the base64 of USER:PASSWORD"), Hint: "log in again: docker login or podman login"}
		}
		// Old versions of Docker padded with NULs.
		c.Username, c.Password = user, strings.TrimRight(password, "\x00")
	}
	return c.normal(), nil
}

// normal makes an identity token of the password of "<token>".
func (c Credential) normal() Credential {
	if c.Username == tokenUser {
		c.IdentityToken, c.Username, c.Password = c.Password, "", ""
	}
	return c
}
