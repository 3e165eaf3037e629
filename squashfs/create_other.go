//go:build !linux

package squashfs

import "os"

func openTemp(dir, base string) (*os.File, string, error) { return openNamed(dir, base) }

// linkTemp is never reached: openTemp gives every file a name.
func linkTemp(_ *os.File, path string) (string, error) { return path, nil }
