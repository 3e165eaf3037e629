package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// smallFiles makes a tree of n text files of up to 6 KB, 100 in a directory,
// always the same ones.
func smallFiles(dir string, n, lines int) error {
	rnd := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("d%04d", i/100))
		if i%100 == 0 {
			if err := os.MkdirAll(sub, 0o777); err != nil {
				return err
			}
		}
		text = text[:0]
		for range 1 + rnd.IntN(lines) {
			text = fmt.Appendf(text, "name_%d = compute(%d, alpha=0.%d)\n", rnd.IntN(500), rnd.IntN(100), rnd.IntN(10000))
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file%06d.py", i)), text, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// concatenate writes the files below dir, one behind the other, into one of size bytes.
func concatenate(dir, file string, size int64) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	full := errors.New("full")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		n, err := io.Copy(out, io.LimitReader(in, size))
		if err != nil {
			return err
		}
		if size -= n; size == 0 {
			return full
		}
		return nil
	})
	if err != nil && !errors.Is(err, full) {
		return err
	}
	return out.Close()
}
