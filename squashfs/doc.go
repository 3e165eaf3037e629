// Package squashfs reads, writes, joins and checks squashfs 4.0 images, the
// read-only file systems of Linux, without the kernel, without root and without
// other programs.
//
// # Writing
//
// [Create] begins an image file that appears under its name when it is complete;
// [NewWriter] begins one in any [Output]. Add entries in any order with
// [Writer.Add], [Writer.Link] and, on Linux, [Writer.AddDir], then call
// [FileWriter.Commit] or [Writer.Finish]. Content streams: a file's length need
// not be known, nothing is unpacked, and memory grows by some 150 bytes an entry
// and 4 bytes a block, not with the content. Blocks are compressed on all
// processors. The same input gives the same bytes, whatever their number.
//
// [Writer.AddFrom] takes a file from another image and copies its compressed
// blocks as they are: flattening or trimming an image costs a copy, or, on file
// systems that share blocks, hardly that.
//
// # Reading
//
// [Open] and [NewReader] give a [Reader]. [Reader.FS] is the image as an
// [io/fs.FS]; the Reader's own methods reach inodes by place, number and name,
// list directories without holding them, and read files and extended
// attributes. Who keeps a file's [Layout] reads it by [Reader.OpenLayout] without a look
// at the image's metadata. Blocks are decompressed in parallel and kept in a [Cache] outside
// the Go heap. Images of mksquashfs, squashfs-tools-ng and others are read with
// any compression that Linux reads: gzip, zstd, lz4, xz and lzo. [Check] proves
// that an image keeps all rules of its format.
//
// # Concurrency
//
// A Reader and a Cache may be used by any number of goroutines at once, as may a
// [File] but for Read, Seek and WriteTo. A Writer belongs to one goroutine at a time.
//
// # Hostile images
//
// Reading an image of unknown origin gives right data or an error, never a panic,
// a hang or memory beyond the documented bounds. The format has no checksums:
// what a flipped bit in stored data means, nobody can tell. Who walks an image with
// methods of the Reader bounds the walk himself: listings may be shared by many
// directories, which [Check] and [Writer.AddImage] refuse.
//
// # What it does not do
//
// It does not mount, does not append to images, and does not write xz, lzo or
// lzma. POSIX ACLs have no place in the format. The sources for the format are
// squashfs-tools-ng's doc/format.adoc and the kernel's fs/squashfs; the file
// docs/formats/squashfs.md of this module says what is written and why.
package squashfs
