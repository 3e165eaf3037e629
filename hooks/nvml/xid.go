package nvml

import "fmt"

// XidText says what an Xid means, in the words of NVIDIA's "XID Errors" guide
// (docs.nvidia.com/deploy/xid-errors), and names the number.
func XidText(xid uint64) string {
	for _, x := range xids {
		if x.number == xid {
			return fmt.Sprintf("Xid %d: %s", xid, x.text)
		}
	}
	return fmt.Sprintf("Xid %d", xid)
}

// xids is no map: that would be made at every start of a program.
var xids = []struct {
	number uint64
	text   string
}{
	{13, "graphics engine exception: usually the program's own fault"},
	{31, "GPU memory page fault: usually the program's own fault"},
	{32, "invalid or corrupted push buffer stream"},
	{38, "driver firmware error"},
	{43, "GPU stopped processing: usually the program's own fault"},
	{45, "preemptive cleanup, due to previous errors or the end of a program"},
	{48, "double bit ECC error"},
	{61, "internal micro-controller breakpoint or warning"},
	{62, "internal micro-controller halt"},
	{63, "ECC page retirement or row remapping recorded"},
	{64, "ECC page retirement or row remapping failed to be recorded"},
	{68, "video processor exception"},
	{69, "graphics engine class error"},
	{74, "NVLink error"},
	{79, "GPU has fallen off the bus"},
	{92, "high single-bit ECC error rate"},
	{94, "contained ECC error: the programs on this GPU end, others do not"},
	{95, "uncontained ECC error: the GPU needs a reset"},
	{109, "context switch timeout"},
	{119, "GSP RPC timeout: the GPU needs a reset"},
	{120, "GSP error: the GPU needs a reset"},
	{140, "unrecovered ECC error: the GPU needs a reset"},
	{149, "NVLink error"},
	{154, "GPU recovery action changed"},
}
