// Package layer makes of one layer blob of an OCI image, a tar archive that may be
// compressed, one file: a squashfs image that holds the content of its files,
// and behind it a table of contents (TOC) that says what the archive said, entry
// by entry, in its order. docs/formats/layer.md describes the file.
//
// Convert works on the stream: nothing is unpacked or kept, each byte is
// decompressed, hashed and compressed once, and a file costs memory for its name
// only. The same blob gives the same bytes, whatever the number of processors.
//
// The TOC is the truth; the squashfs part is where content lies. It mounts and
// reads sensibly too, but squashfs has no room for two entries of one name, for
// POSIX ACLs and other things that a tar archive may have.
//
// A Layer may be used by any number of goroutines at once. Whatever an artefact
// holds, reading it gives right data or an error, never a panic or memory beyond
// the documented bounds.
package layer
