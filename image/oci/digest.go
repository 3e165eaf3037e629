package oci

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// Digest names bytes by their hash: "algorithm:hex", as OCI image-spec's
// descriptor.md has it. ParseDigest proves the form; algorithms are sha256 and
// sha512.
type Digest string

// ParseDigest checks a digest's form.
func ParseDigest(s string) (Digest, error) {
	algorithm, digits, ok := strings.Cut(s, ":")
	if !ok {
		return "", fmt.Errorf("digest %.100q: want ALGORITHM:HEX", s)
	}
	size := map[string]int{"sha256": sha256.Size, "sha512": sha512.Size}[algorithm]
	if size == 0 {
		return "", fmt.Errorf("digest %.100q: algorithm %q is unknown; want sha256 or sha512", s, algorithm)
	}
	if len(digits) != 2*size || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %.150q: want %d lower-case hexadecimal digits", s, 2*size)
	}
	return Digest(s), nil
}

// Algorithm returns "sha256" or "sha512".
func (d Digest) Algorithm() string {
	a, _, _ := strings.Cut(string(d), ":")
	return a
}

// Hex returns the digits.
func (d Digest) Hex() string {
	_, h, _ := strings.Cut(string(d), ":")
	return h
}

// Short returns the first 12 digits, as people are shown.
func (d Digest) Short() string { return d.Hex()[:min(12, len(d.Hex()))] }

// Hash returns a new hash of the digest's algorithm.
func (d Digest) Hash() hash.Hash {
	if d.Algorithm() == "sha512" {
		return sha512.New()
	}
	return sha256.New()
}

// Is says whether sum is the digest's value. sum comes from a hash made by Hash.
func (d Digest) Is(sum []byte) bool { return d.Hex() == hex.EncodeToString(sum) }

// SHA256 returns the digest that a finished SHA-256 hash gives.
func SHA256(h hash.Hash) Digest { return Digest("sha256:" + hex.EncodeToString(h.Sum(nil))) }

// DigestOf returns the SHA-256 digest of b.
func DigestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}
