package drm

import (
	"strings"
	"testing"
)

// FuzzProperties: whatever the kernel says, the address is one that sysfs could have.
func FuzzProperties(f *testing.F) {
	f.Add("simd_count 304\nunique_id 81985529216486895\nlocation_id 16640\ndomain 0\ndrm_render_minor 128\n")
	f.Add("simd_count\t1\ndomain 18446744073709551615\nlocation_id 18446744073709551615\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		p := parseProperties(text)
		if !isPCI(p.pci()) {
			t.Fatalf("%q of %q is no PCI address", p.pci(), text)
		}
		if p.minor < -1 || p.minor >= 1<<20 {
			t.Fatalf("minor %d", p.minor)
		}
		for line := range strings.Lines(text) {
			if strings.TrimSpace(line) == "simd_count 304" && strings.Count(text, "simd_count") == 1 && p.simds != 304 {
				t.Fatalf("%d of %q", p.simds, text)
			}
		}
	})
}
