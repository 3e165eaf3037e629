package credential

import (
	"fmt"
	"log/slog"
)

// Credential is what a registry asks for. The zero value means anonymous.
type Credential struct {
	Username, Password string
	IdentityToken      string // an OAuth2 refresh token, sent to the token server
	RegistryToken      string // a bearer token, sent to the registry as it is
	// Source says where it comes from, for people: "/home/u/.docker/config.json, auths".
	// Never a secret.
	Source string
}

// IsZero says whether there is nothing to send.
func (c Credential) IsZero() bool {
	return c.Username == "" && c.Password == "" && c.IdentityToken == "" && c.RegistryToken == ""
}

// String names the user and the source, and no secret.
func (c Credential) String() string {
	if c.IsZero() {
		return "no credential"
	}
	user := c.Username
	if user == "" {
		user = "a token"
	}
	return fmt.Sprintf("%s from %s", user, c.Source)
}

// GoString is String, so that %#v shows no secret either.
func (c Credential) GoString() string { return c.String() }

// LogValue is String, so that no log can hold a secret.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }
