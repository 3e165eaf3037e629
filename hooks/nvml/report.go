package nvml

import "time"

// In all reports a nil number or an empty text says that this GPU, or this driver, does
// not tell: zero is an answer. Error is what went wrong with one GPU while the others
// answered. Fields may be added, never changed.

// Inventory is which GPUs there are.
type Inventory struct {
	DriverVersion string `json:"driver_version"`
	NVMLVersion   string `json:"nvml_version"`
	CUDAVersion   string `json:"cuda_version,omitempty"` // the newest that the driver runs: "12.4"
	GPUs          []GPU  `json:"gpus"`
}

// GPU is one physical GPU.
type GPU struct {
	Index       int        `json:"index"`           // as NVML counts, in the order of PCI addresses
	Minor       *int       `json:"minor,omitempty"` // N of /dev/nvidiaN
	UUID        string     `json:"uuid"`
	Name        string     `json:"name"`
	PCIBusID    string     `json:"pci_bus_id"` // as sysfs spells it
	MemoryBytes uint64     `json:"memory_bytes"`
	MIG         string     `json:"mig"` // "enabled", "disabled" or "unsupported"
	Instances   []Instance `json:"instances,omitempty"`
	Capability  string     `json:"capability,omitempty"` // of CUDA: "9.0"
	Brand       string     `json:"brand,omitempty"`      // as NVIDIA_REQUIRE_CUDA spells it: "tesla"
	Serial      string     `json:"serial,omitempty"`
	VBIOS       string     `json:"vbios,omitempty"`
	Persistent  *bool      `json:"persistent,omitempty"`   // the driver keeps it initialised
	ComputeMode string     `json:"compute_mode,omitempty"` // "default", "exclusive-process" or "prohibited"
	Error       string     `json:"error,omitempty"`
}

// Instance is one MIG instance of a GPU.
type Instance struct {
	UUID            string  `json:"uuid"`
	GPUInstance     int     `json:"gpu_instance"`
	ComputeInstance int     `json:"compute_instance"`
	MemoryBytes     *uint64 `json:"memory_bytes,omitempty"`
	Multiprocessors *int    `json:"multiprocessors,omitempty"`
	Slices          *int    `json:"slices,omitempty"` // of the GPU, up to 7
}

// Topology is how GPUs reach each other, the processors and other nodes.
type Topology struct {
	GPUs []Place `json:"gpus"`
	// Paths says of each pair, in the order of GPUs, what nvidia-smi says: "X" for the same
	// GPU; "NV4" for four NVLinks, straight or through switches; "PIX" for one PCIe switch;
	// "PXB" for several; "PHB" for a host bridge; "NODE" within a NUMA node; "SYS" between
	// them; "" for unknown.
	Paths [][]string `json:"paths"`
}

// Place is where one GPU is.
type Place struct {
	UUID      string   `json:"uuid"`
	PCIBusID  string   `json:"pci_bus_id"`
	NUMANodes string   `json:"numa_nodes,omitempty"` // whose memory is near: "0" or "0-1"
	CPUs      string   `json:"cpus,omitempty"`       // that are near: "0-31,64-95"
	PCIe      *PCIe    `json:"pcie,omitempty"`
	NVLinks   []NVLink `json:"nvlinks,omitempty"`
	Fabric    *Fabric  `json:"fabric,omitempty"`
	Error     string   `json:"error,omitempty"`
}

// PCIe is a GPU's PCI Express link. An idle GPU lowers its generation; a width below
// MaxWidth is a fault.
type PCIe struct {
	Generation    *int `json:"generation,omitempty"`
	MaxGeneration *int `json:"max_generation,omitempty"`
	Width         *int `json:"width,omitempty"` // lanes
	MaxWidth      *int `json:"max_width,omitempty"`
}

// NVLink is one NVLink of a GPU.
type NVLink struct {
	Link    int    `json:"link"`
	Active  bool   `json:"active"`
	Version *int   `json:"version,omitempty"`
	Peer    string `json:"peer,omitempty"`      // "gpu", "switch" or "npu"
	PeerBus string `json:"peer_bus,omitempty"`  // PCI address of the other end
	PeerID  string `json:"peer_uuid,omitempty"` // of the other end, if it is a GPU that was asked about
}

// Fabric is the NVLink domain that a GPU belongs to: GPUs of several nodes with the same
// cluster and clique reach each other by NVLink.
type Fabric struct {
	State   string `json:"state"` // "not-started", "in-progress" or "completed"
	Status  string `json:"status,omitempty"`
	Cluster string `json:"cluster_uuid,omitempty"`
	Clique  uint32 `json:"clique"`
}

// Health is what may be wrong with GPUs.
type Health struct {
	Time time.Time   `json:"time"`
	GPUs []Condition `json:"gpus"`
}

// Condition is the health of one GPU.
type Condition struct {
	UUID            string       `json:"uuid"`
	SMClockMHz      *int         `json:"sm_clock_mhz,omitempty"`
	SMClockMaxMHz   *int         `json:"sm_clock_max_mhz,omitempty"`
	MemClockMHz     *int         `json:"memory_clock_mhz,omitempty"`
	MemClockMaxMHz  *int         `json:"memory_clock_max_mhz,omitempty"`
	PState          *int         `json:"pstate,omitempty"`   // 0 is the fastest
	Throttle        []string     `json:"throttle,omitempty"` // why clocks are low: "sw-power-cap"
	TemperatureC    *int         `json:"temperature_c,omitempty"`
	SlowdownC       *int         `json:"slowdown_c,omitempty"`
	ShutdownC       *int         `json:"shutdown_c,omitempty"`
	PowerMilliwatts *uint64      `json:"power_mw,omitempty"`
	PowerLimit      *uint64      `json:"power_limit_mw,omitempty"`
	ECC             *ECC         `json:"ecc,omitempty"`
	RemappedRows    *Rows        `json:"remapped_rows,omitempty"`
	RetiredPages    *Pages       `json:"retired_pages,omitempty"`
	PCIeReplays     *uint64      `json:"pcie_replays,omitempty"`
	NVLinkErrors    []LinkErrors `json:"nvlink_errors,omitempty"` // of links that had any
	Error           string       `json:"error,omitempty"`
}

// ECC is a GPU's memory errors: those since the driver was loaded, and those of its life.
type ECC struct {
	Enabled              bool    `json:"enabled"`
	EnabledAfterReset    bool    `json:"enabled_after_reset"`
	Corrected            *uint64 `json:"corrected,omitempty"`
	Uncorrected          *uint64 `json:"uncorrected,omitempty"`
	CorrectedAggregate   *uint64 `json:"corrected_aggregate,omitempty"`
	UncorrectedAggregate *uint64 `json:"uncorrected_aggregate,omitempty"`
}

// Rows is memory that was replaced by spare rows (Ampere and later).
type Rows struct {
	Corrected   int  `json:"corrected"`
	Uncorrected int  `json:"uncorrected"`
	Pending     bool `json:"pending"` // done at the next reset
	Failed      bool `json:"failed"`  // there was no spare row: the GPU is to be replaced
}

// Pages is memory that was taken out of use (before Ampere).
type Pages struct {
	SingleBit *int  `json:"single_bit,omitempty"`
	DoubleBit *int  `json:"double_bit,omitempty"`
	Pending   *bool `json:"pending,omitempty"`
}

// LinkErrors counts the errors of one NVLink.
type LinkErrors struct {
	Link     int     `json:"link"`
	Replay   *uint64 `json:"replay,omitempty"`
	Recovery *uint64 `json:"recovery,omitempty"`
	CRC      *uint64 `json:"crc,omitempty"`
}

// Sample is what GPUs do at one moment.
type Sample struct {
	Time time.Time `json:"time"`
	GPUs []Load    `json:"gpus"`
}

// Load is what one GPU does. Percentages are of the driver's last sampling period: how
// long any kernel ran, not how much of the GPU it filled.
type Load struct {
	UUID            string  `json:"uuid"`
	GPUPercent      *int    `json:"gpu_percent,omitempty"`
	MemoryPercent   *int    `json:"memory_percent,omitempty"` // of the time that memory was accessed
	MemoryUsed      *uint64 `json:"memory_used_bytes,omitempty"`
	MemoryTotal     *uint64 `json:"memory_total_bytes,omitempty"`
	PowerMilliwatts *uint64 `json:"power_mw,omitempty"`
	Millijoules     *uint64 `json:"energy_mj,omitempty"` // since the driver was loaded
	Error           string  `json:"error,omitempty"`
}

// Processes is who uses GPUs.
type Processes struct {
	Time      time.Time `json:"time"`
	Processes []Process `json:"processes"`
	Errors    []string  `json:"errors,omitempty"`
}

// Process is one process on one GPU, by its id in the host's pid namespace.
type Process struct {
	GPU             string  `json:"gpu"`
	PID             int     `json:"pid"`
	Kind            string  `json:"kind"` // "compute" or "graphics"
	MemoryBytes     *uint64 `json:"memory_bytes,omitempty"`
	GPUInstance     *int    `json:"gpu_instance,omitempty"`
	ComputeInstance *int    `json:"compute_instance,omitempty"`
	SMPercent       *int    `json:"sm_percent,omitempty"`
	MemoryPercent   *int    `json:"memory_percent,omitempty"`
}

// Event is something that a GPU reported by itself.
type Event struct {
	Time time.Time `json:"time"`
	GPU  string    `json:"gpu"`           // UUID, "" if the GPU does not tell any more
	Kind string    `json:"kind"`          // "xid", "ecc-double-bit", "ecc-single-bit" or "other"
	Xid  uint64    `json:"xid,omitempty"` // if Kind is "xid"; XidText has words for it
}
