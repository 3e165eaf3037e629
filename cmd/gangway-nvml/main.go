// Command gangway-nvml asks NVIDIA's management library (NVML) what GPUs there are
// and prints one JSON document. It is a program of its own because NVML needs cgo
// and because a hung driver hangs whoever asks it: gangway and gangwayd read its
// answer from a pipe, with a deadline of their own.
//
//	gangway-nvml [-timeout 10s]
//
// The document is an [Inventory]:
//
//	{
//	  "driver_version": "570.86.15",
//	  "nvml_version": "12.570.86.15",
//	  "gpus": [
//	    {
//	      "index": 0,
//	      "uuid": "GPU-5a2e...",
//	      "name": "NVIDIA H200",
//	      "pci_bus_id": "0000:18:00.0",
//	      "memory_bytes": 150754820096,
//	      "mig": "disabled",
//	      "serial": "165..."
//	    }
//	  ]
//	}
//
// A GPU that answers in part has the field "error" and what it did answer; fields
// may be added, never changed. The exit code is 0, 2 for a wrong command line, or
// 125 without NVML, on an error of NVML and after the timeout; then nothing is on
// standard output. A process whose thread hangs in the kernel prints its error in
// time and is gone only when the kernel lets it, so do not wait for its end.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Inventory is what NVML says about this machine.
type Inventory struct {
	DriverVersion string `json:"driver_version"`
	NVMLVersion   string `json:"nvml_version"`
	GPUs          []GPU  `json:"gpus"`
}

// GPU is one physical GPU.
type GPU struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	PCIBusID    string `json:"pci_bus_id"` // as sysfs spells it
	MemoryBytes uint64 `json:"memory_bytes"`
	MIG         string `json:"mig"` // "enabled", "disabled" or "unsupported"
	Serial      string `json:"serial,omitempty"`
	Error       string `json:"error,omitempty"`
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, query))
}

// run is the program with what it asks as an argument.
func run(args []string, stdout, stderr io.Writer, ask func() (*Inventory, error)) int {
	inv, err := answer(args, ask)
	if err == nil {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(inv)
	}
	if err != nil {
		_, _ = io.WriteString(stderr, fault.Text("gangway-nvml", err, false))
	}
	return fault.Code(err)
}

// answer calls ask and waits for it no longer than args say.
func answer(args []string, ask func() (*Inventory, error)) (*Inventory, error) {
	const usage = "usage: gangway-nvml [-timeout 10s]"
	flags := flag.NewFlagSet("gangway-nvml", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	timeout := flags.Duration("timeout", 10*time.Second, "")
	if err := flags.Parse(args); err != nil {
		return nil, fault.Usage(err, usage)
	}
	if flags.NArg() > 0 {
		return nil, fault.Usage(fmt.Errorf("unexpected operand %q", flags.Arg(0)), usage)
	}

	type result struct {
		inv *Inventory
		err error
	}
	done := make(chan result, 1)
	go func() { // left behind when the driver hangs: the process ends
		inv, err := ask()
		done <- result{inv, err}
	}()
	select {
	case r := <-done:
		return r.inv, r.err
	case <-time.After(*timeout):
		return nil, &fault.Error{
			What:  errors.New("ask NVML for the GPUs: no answer in " + timeout.String()),
			Cause: "the NVIDIA driver hangs",
			Hint:  "look for Xid messages in the kernel log: dmesg | grep NVRM",
		}
	}
}
