//go:build !linux

package squashfs

import "os"

func openTemp(dir, base string) (*os.File, string, error) { return openNamed(dir, base) }

// linkTemp is never reached: openTemp gives every file a name.
func linkTemp(_ *os.File, path string, _ bool) (string, error) { return path, nil }

func renameNew(from, to string) error { return linkNew(from, to) }
