package layer

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// BenchmarkConvert converts the layer that GANGWAY_BENCH_LAYER names, and reports
// the unpacked bytes a second.
func BenchmarkConvert(b *testing.B) {
	blob := os.Getenv("GANGWAY_BENCH_LAYER")
	if blob == "" {
		b.Skip("needs GANGWAY_BENCH_LAYER, the path of a layer's blob")
	}
	for b.Loop() {
		in, err := os.Open(blob)
		if err != nil {
			b.Fatal(err)
		}
		out, err := os.Create(filepath.Join(b.TempDir(), "artefact"))
		if err != nil {
			b.Fatal(err)
		}
		info, err := Convert(b.Context(), out, in, Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(info.TarSize)
		b.ReportMetric(float64(info.Size)/float64(info.TarSize), "ratio")
		b.ReportMetric(float64(info.Entries), "entries")
		in.Close()
		out.Close()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys>>20), "MiB")
}
