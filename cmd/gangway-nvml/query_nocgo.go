//go:build !cgo

package main

import (
	"errors"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// query cannot call a C library in a build without cgo.
func query() (*Inventory, error) {
	return nil, &fault.Error{
		What:  errors.New("ask NVML for the GPUs: built without cgo"),
		Hint:  "build it with a C compiler: make gangway-nvml",
		Cause: "NVML is a C library",
	}
}
