package nvidia

import (
	"strconv"
	"strings"
)

// cudaOf lists the first driver branch of each CUDA release, newest first. Source:
// CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding Driver Versions".
var cudaOf = []struct {
	branch int
	cuda   string
}{
	{590, "13.1"},
	{580, "13.0"},
	{575, "12.9"},
	{570, "12.8"},
	{565, "12.7"},
	{560, "12.6"},
	{555, "12.5"},
	{550, "12.4"},
	{545, "12.3"},
	{535, "12.2"},
	{530, "12.1"},
	{525, "12.0"},
	{520, "11.8"},
	{515, "11.7"},
	{510, "11.6"},
	{495, "11.5"},
	{470, "11.4"},
	{465, "11.3"},
	{460, "11.2"},
	{455, "11.1"},
	{450, "11.0"},
	{440, "10.2"},
	{418, "10.1"},
	{410, "10.0"},
}

// branchStep is how far branches are apart at least.
const branchStep = 5

// architectures lists words of GPU models with their compute capability. Source:
// developer.nvidia.com/cuda-gpus. A model that has none of them is not known.
var architectures = []struct{ words, arch string }{
	{"GB300 B300", "10.3"},
	{"GB200 B200 B100", "10.0"},
	{"GB10", "12.1"},
	{"GH200 H100 H200 H800 H20 GH100", "9.0"},
	{"L4 L40 L40S L20 L2", "8.9"},
	{"A100 A800 A30", "8.0"},
	{"A10 A10G A16 A2 A40 A6000 A5000 A4000", "8.6"},
	{"T4 T4G", "7.5"},
	{"V100", "7.0"},
	{"P100", "6.0"},
	{"P4 P40", "6.1"},
}

// branch is the number before the first dot of a driver's version, 0 if there is none.
func branch(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// Facts returns what is known of the driver without NVML: CUDA by the driver's
// branch, architecture and brand by the model of the GPUs. What GPUs of several
// models differ in is not known.
func (d *Driver) Facts() Facts {
	f := FactsOf(d.Version)
	for i, g := range d.GPUs {
		arch, brand := archOf(g.Model), brandOf(g.Model)
		if i > 0 && arch != f.Arch {
			arch = ""
		}
		if i > 0 && brand != f.Brand {
			brand = ""
		}
		f.Arch, f.Brand = arch, brand
	}
	return f
}

// FactsOf returns what a driver's version alone says.
func FactsOf(version string) Facts {
	f := Facts{Driver: version}
	for i, c := range cudaOf {
		if i == 0 && branch(version) >= c.branch+branchStep {
			break // newer than the table: it is not known how much
		}
		if branch(version) >= c.branch {
			f.CUDA = c.cuda
			break
		}
	}
	return f
}

// archOf looks the words of a model up: "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB".
func archOf(model string) string {
	for word := range strings.FieldsFuncSeq(model, func(r rune) bool { return r == ' ' || r == '-' }) {
		for _, a := range architectures {
			for w := range strings.FieldsSeq(a.words) {
				if w == word {
					return a.arch
				}
			}
		}
	}
	return ""
}

// brandOf is NVML's brand of a model, as far as its name says. A plain "NVIDIA X" is
// of the brand "nvidia" or "tesla", which only NVML tells apart.
func brandOf(model string) string {
	switch {
	case strings.Contains(model, "GeForce RTX"):
		return "geforcertx"
	case strings.Contains(model, "GeForce"):
		return "geforce"
	case strings.Contains(model, "TITAN RTX"):
		return "titanrtx"
	case strings.Contains(strings.ToUpper(model), "TITAN"):
		return "titan"
	case strings.Contains(model, "Quadro RTX"):
		return "quadrortx"
	case strings.Contains(model, "Quadro"):
		return "quadro"
	case strings.HasPrefix(model, "NVIDIA RTX"):
		return "nvidiartx"
	case strings.HasPrefix(model, "Tesla"):
		return "tesla"
	}
	return ""
}
