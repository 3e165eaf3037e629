// Package ldcache reads, merges and writes /etc/ld.so.cache, in which the dynamic
// loader of glibc looks a library's name up, and reads from a shared object what
// the cache says of it.
//
// [Merge] is what the GPU hook calls: the bytes of an image's cache and the
// driver's libraries in, the bytes of the cache for the container out. It takes the
// place of running ldconfig over an image, which would execute a program on files
// that the image's author chose. [Parse] and [Cache.Bytes] are its halves;
// [ReadELF] gives the soname and the flags of a library.
//
// Both layouts of the file are read (the one of glibc 2.2 and later, alone or
// inside the older one); the newer is written. Entries from glibc-hwcaps
// subdirectories are kept with their names. Only little-endian files are known,
// that is those of amd64, arm64 and 386.
//
// All input may be hostile: everything has limits, and what is out of bounds is an
// error, never a panic. The package opens no file, executes nothing, keeps no state
// and may be used by any number of goroutines.
package ldcache

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"strings"
)

// Limits of what Parse takes.
const (
	MaxSize    = 16 << 20 // bytes of a cache; a full workstation's has 200 KB
	MaxEntries = 1 << 17  // entries of a cache
	maxString  = 4096     // bytes of one name or path
)

// Flags that a cache gives a library: what kind it is and for which machine.
const (
	FlagsAMD64 int32 = 0x0303 // 64 bits, x86-64
	FlagsARM64 int32 = 0x0a03 // 64 bits, AArch64
	Flags386   int32 = 0x0003 // 32 bits, x86
)

// ErrFormat is wrapped by every error about bytes that are not a cache.
var ErrFormat = errors.New("not a valid ld.so.cache")

// HostFlags are the flags of this machine's own libraries; 0 for an architecture
// that the package does not know.
func HostFlags() int32 {
	switch runtime.GOARCH {
	case "amd64":
		return FlagsAMD64
	case "arm64":
		return FlagsARM64
	}
	return 0
}

// Entry is one library of a cache.
type Entry struct {
	Name      string // as programs ask for it, usually the soname: "libcuda.so.1"
	Path      string // of the file, absolute in the container
	Flags     int32  // kind and machine, as FlagsAMD64
	OSVersion uint32 // least kernel (ELF ABI note), or the ISA level as old caches have it
	HWCap     uint64 // hardware capabilities of the time before glibc 2.33; 0 when HWCaps is set
	HWCaps    string // glibc-hwcaps subdirectory, as "x86-64-v3"; empty for none
	ISALevel  uint32 // with HWCaps: the level that the file's own note asks for (at most 1023)
}

// Cache is the content of an ld.so.cache.
type Cache struct {
	Entries   []Entry // in the loader's order once Bytes or Merge was called
	Generator string  // who wrote it, as "ldconfig (GNU libc) stable release version 2.36"
}

// Report says what Merge found in an image.
type Report struct {
	Image    int     // entries of the image's cache
	Added    int     // entries that were merged into it
	Replaced []Entry // the image's entries that gave way: to the loader they had the name and flags of an added one
	Ignored  error   // why the image's cache was not used, wrapping ErrFormat; nil if it was, or if there is none
}

// Merge returns the cache of a container: the image's own with add, which comes
// before the image's entries of the same name and flags and takes their place.
//
// An image without a cache (no bytes) gets one that holds add alone. That takes
// nothing from it: the loader looks in its default directories after the cache, as
// before. So does one whose cache is garbage, which the loader would not have used
// either; Report.Ignored says so.
func Merge(image []byte, add []Entry) ([]byte, Report) {
	c := &Cache{}
	var r Report
	if len(image) > 0 {
		parsed, err := Parse(image)
		if err != nil {
			r.Ignored = err
		} else {
			c = parsed
		}
	}
	r.Image, r.Added = len(c.Entries), len(add)
	r.Replaced = c.Merge(add)
	return c.Bytes(), r
}

// Merge puts add into c and returns the entries that were taken out for them.
func (c *Cache) Merge(add []Entry) (replaced []Entry) {
	c.sort()
	for _, e := range add {
		// By name and flags alone: of equal names libx.so.01 is one of libx.so.1.
		first, _ := slices.BinarySearchFunc(c.Entries, e, compareIDs)
		end := first
		for end < len(c.Entries) && compareIDs(c.Entries[end], e) == 0 {
			end++
		}
		replaced = append(replaced, c.Entries[first:end]...)
		c.Entries = slices.Delete(c.Entries, first, end)
	}
	add = slices.Clone(add)
	slices.SortStableFunc(add, order)
	// From the end, in place; of equal entries the added ones come first.
	i, j := len(c.Entries)-1, len(add)-1
	c.Entries = slices.Grow(c.Entries, len(add))[:len(c.Entries)+len(add)]
	for at := len(c.Entries) - 1; j >= 0; at-- {
		if i >= 0 && order(c.Entries[i], add[j]) >= 0 {
			c.Entries[at] = c.Entries[i]
			i--
		} else {
			c.Entries[at] = add[j]
			j--
		}
	}
	return replaced
}

func (c *Cache) sort() {
	if !slices.IsSortedFunc(c.Entries, order) {
		slices.SortStableFunc(c.Entries, order)
	}
}

// compareIDs compares what the loader searches by, downwards.
func compareIDs(a, b Entry) int {
	if n := CompareNames(b.Name, a.Name); n != 0 {
		return n
	}
	return cmp.Compare(b.Flags, a.Flags)
}

// order is the order of entries in a cache. The loader searches it by halves, by
// name alone and downwards; of those with one name it takes the first that fits,
// and it stops looking for glibc-hwcaps at the first entry without.
func order(a, b Entry) int {
	if n := compareIDs(a, b); n != 0 {
		return n
	}
	if (a.HWCaps != "") != (b.HWCaps != "") {
		if a.HWCaps != "" {
			return -1
		}
		return 1
	}
	if n := strings.Compare(a.HWCaps, b.HWCaps); n != 0 {
		return n
	}
	if n := cmp.Compare(b.HWCap, a.HWCap); n != 0 {
		return n
	}
	return cmp.Compare(b.OSVersion, a.OSVersion)
}

// CompareNames compares two names as the loader does (_dl_cache_libcmp): runs of
// digits count as numbers, so that libx.so.9 is before libx.so.10.
func CompareNames(a, b string) int {
	digit := func(s string, i int) bool { return i < len(s) && s[i] >= '0' && s[i] <= '9' }
	number := func(s string, i int) (int32, int) {
		var n int32 // an int of C, which wraps around
		for ; digit(s, i); i++ {
			n = n*10 + int32(s[i]-'0')
		}
		return n, i
	}
	at := func(s string, i int) int {
		if i < len(s) {
			return int(s[i])
		}
		return 0
	}
	i, j := 0, 0
	for i < len(a) {
		switch {
		case digit(a, i) && digit(b, j):
			var m, n int32
			m, i = number(a, i)
			n, j = number(b, j)
			if m != n {
				return int(m) - int(n)
			}
		case digit(a, i):
			return 1
		case digit(b, j):
			return -1
		case at(a, i) != at(b, j):
			return at(a, i) - at(b, j)
		default:
			i++
			j++
		}
	}
	return -at(b, j)
}
