package config

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const knownHint = `there are locked, image.store, image.max_size, image.service, devices.cdi_dirs, devices.nvidia_roots, devices.rdma, hooks.dirs, hooks.timeout, hooks.enroot, and in [registry."HOST"] mirrors, ca, plain_http, skip_verify; lower case counts`

// anyHost stands for the name of a registry.
const anyHost = "*"

// schema returns all keys that there are.
func schema() [][]string {
	return [][]string{
		{"locked"},
		{"image", "store"},
		{"image", "max_size"},
		{"image", "service"},
		{"devices", "cdi_dirs"},
		{"devices", "nvidia_roots"},
		{"devices", "rdma"},
		{"hooks", "dirs"},
		{"hooks", "timeout"},
		{"hooks", "enroot"},
		{"registry", anyHost, "mirrors"},
		{"registry", anyHost, "ca"},
		{"registry", anyHost, "plain_http"},
		{"registry", anyHost, "skip_verify"},
	}
}

// known says whether there is such a key, or a table of that name.
func known(key []string) bool {
	return slices.ContainsFunc(schema(), func(k []string) bool {
		return len(key) <= len(k) && slices.EqualFunc(key, k[:len(key)], func(a, b string) bool { return a == b || b == anyHost })
	})
}

// keys yields the keys that tables set, and tables that are empty.
func keys(prefix []string, table map[string]any) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for k, v := range table {
			key := append(slices.Clone(prefix), k)
			sub, ok := v.(map[string]any)
			if !ok || len(sub) == 0 {
				if !yield(key) {
					return
				}
				continue
			}
			for key := range keys(key, sub) {
				if !yield(key) {
					return
				}
			}
		}
	}
}

// locks are the keys that only the system's file may set, as they are written there.
type locks map[string][]string

// locksOf reads the list of locked keys. One that names no key is an error: it would
// lock nothing.
func locksOf(file string, system map[string]any) (locks, error) {
	l := locks{}
	list, _ := system["locked"].([]any)
	for _, v := range list {
		text, _ := v.(string) // proved by read
		path, err := splitKey(text)
		if err == nil && !known(path) {
			err = errors.New("there is no such key")
		}
		if err != nil {
			return nil, &fault.Error{
				What: fmt.Errorf("read configuration %s: locked lists %q: %w", file, text, err),
				Hint: `lock for example "image.store", "registry", or 'registry."docker.io".ca'`,
			}
		}
		l[text] = path
	}
	return l, nil
}

// of returns the lock that key falls under: the key itself, what it is part of, or, for
// a table that is set as a whole, a part of it.
func (l locks) of(key []string) string {
	for text, path := range l {
		if within(key, path) || within(path, key) {
			return text
		}
	}
	return ""
}

func within(key, table []string) bool {
	return len(key) >= len(table) && slices.Equal(key[:len(table)], table)
}

// splitKey takes a dotted key of TOML apart: names, or strings in quotes.
func splitKey(text string) ([]string, error) {
	var path []string
	for rest := text; ; {
		name := rest
		if quote := strings.IndexAny(rest, `"'`); quote == 0 {
			end := strings.IndexByte(rest[1:], rest[0])
			if end < 0 {
				return nil, errors.New("a quote is not closed")
			}
			name, rest = rest[1:1+end], rest[2+end:]
			if rest != "" && rest[0] != '.' {
				return nil, errors.New("a dot is missing")
			}
		} else {
			name, _, _ = strings.Cut(rest, ".")
			rest = rest[len(name):]
		}
		if name == "" {
			return nil, errors.New("a name is missing")
		}
		path = append(path, name)
		if rest == "" {
			break
		}
		rest = rest[1:]
	}
	if len(path) > 1 && path[0] == "registry" {
		path[1] = canonicalHost(path[1])
	}
	return path, nil
}
