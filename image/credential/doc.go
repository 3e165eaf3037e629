// Package credential finds what a registry asks for, where other programs have put
// it: Podman's auth.json, Docker's config.json with its credential helpers, and
// Enroot's .credentials.
//
// Everything read is data. Nothing is evaluated by a shell; where Enroot would do
// so, an error says what to use instead. No secret is in an error, a log line or
// the text of a [Credential].
package credential
