package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// rawHeader is a header that package tar would not write.
func rawHeader(name string, typ byte, size int) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x0000000000000\x00", size))
	b[156] = typ
	copy(b[257:], "ustar  \x00")
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestLimits(t *testing.T) {
	zeros := gzipped(t, make([]byte, 1<<20))
	bomb := append(gzipped(t, rawHeader("bomb", '0', 64<<20)), bytes.Repeat(zeros, 65)...)
	var manyHeaders []byte
	for range 10 {
		manyHeaders = append(append(manyHeaders, rawHeader("l", 'L', 500_000)...), make([]byte, (500_000+511)&^511)...)
	}
	longName := append(rawHeader("l", 'L', 2<<20), bytes.Repeat([]byte("n"), 2<<20)...)
	var many []item
	for i := range 11 {
		many = append(many, file(fmt.Sprint("f", i), noise(uint64(i), 100)))
	}
	attrs := file("x", "")
	for i := range 4 {
		attrs = xattr(attrs, fmt.Sprint("user.", i), strings.Repeat("v", 30_000))
	}
	for name, c := range map[string]struct {
		blob   []byte
		limits Limits
		want   string
	}{
		"gzip bomb":       {bomb, Limits{ratioFrom: 1 << 20}, "Ratio"},
		"bytes":           {bomb, Limits{Bytes: 10 << 20}, "Bytes"},
		"zeros behind":    {bytes.Repeat(zeros, 20), Limits{Bytes: 10 << 20}, "Bytes"},
		"entries":         {archive(t, many...), Limits{Entries: 10}, "Entries"},
		"depth":           {archive(t, file("a/b/c", "")), Limits{Depth: 2}, "Depth"},
		"name":            {archive(t, file("abcde", "")), Limits{NameBytes: 4}, "NameBytes"},
		"link":            {archive(t, link(tar.TypeLink, "a", "abcde")), Limits{NameBytes: 4}, "NameBytes"},
		"xattrs":          {archive(t, attrs), Limits{XattrBytes: 100_000}, "XattrBytes"},
		"many headers":    {manyHeaders, Limits{}, "HeaderBytes"},
		"a long header":   {longName, Limits{}, "HeaderBytes"},
		"zstd window":     {[]byte("\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00x"), Limits{}, "Window"},
		"TOC":             {archive(t, many...), Limits{TOCBytes: 100}, "TOCBytes"},
		"content of many": {archive(t, many...), Limits{Bytes: 1050}, "Bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := tryConvert(c.blob, Options{Limits: c.limits})
			var limit *LimitError
			if !errors.As(err, &limit) || limit.What != c.want {
				t.Fatalf("%v, want %s", err, c.want)
			}
			if strings.Contains(err.Error(), "%!") {
				t.Error(err)
			}
		})
	}
	// All of them at their edge are taken.
	edge := Limits{Bytes: 30_000, Entries: 11, Depth: 1, NameBytes: 3, XattrBytes: 100, HeaderBytes: 1024, TOCBytes: 600}
	if _, _, err := tryConvert(archive(t, many...), Options{Limits: edge}); err != nil {
		t.Error(err)
	}
}

// TestOtherFiles: what a blob is that is no layer.
func TestOtherFiles(t *testing.T) {
	for want, blob := range map[string]string{
		"xz": "\xfd7zXZ\x00\x00", "bzip2": "BZh91AY", "lzma": "\x5d\x00\x00\x80", "lz4": "\x04\x22\x4d\x18", "lzip": "LZIP\x01",
		"lzop": "\x89LZO\x00", "compress": "\x1f\x9d\x90", "zip": "PK\x03\x04", "squashfs": "hsqs", "JSON": `{"errors":[]}`, "HTML": "<html>",
		"neither gzip, zstd nor tar": noise(1, 5000), "unknown method": "\x1f\x8b\x07",
	} {
		_, _, err := tryConvert([]byte(blob), Options{MediaType: "application/x"})
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || !strings.Contains(err.Error(), want) || f.Hint == "" || !strings.Contains(f.Cause, "application/x") {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, _, err := tryConvert([]byte(noise(1, 5000)), Options{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"})
	if err == nil || !strings.Contains(err.Error(), "encrypted") {
		t.Error(err)
	}
	_, _, err = tryConvert([]byte("short"), Options{})
	if err == nil {
		t.Error("five bytes are a layer")
	}
}

func TestGarbageBehindGzip(t *testing.T) {
	blob := gzipped(t, archive(t, file("a", "x")))
	for _, tail := range []string{"x", "\x00\x00x", "\x1f\x8b", "\x1f\x8b\x08", strings.Repeat("\x00", 70_000) + "x", "\x00" + string(blob)} {
		if _, _, err := tryConvert(append(blob[:len(blob):len(blob)], tail...), Options{}); err == nil {
			t.Errorf("%.10q was taken", tail)
		}
	}
}
