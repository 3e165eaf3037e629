// Package image makes container images usable without unpacking them: it pulls
// OCI and Docker images, converts each layer once, streaming, into a squashfs
// file, and merges the layers of an image into a small index over these files.
//
//	store, err := image.Open(image.Options{Dir: dir})
//	img, err := store.Pull(ctx, ref, src, image.PullOptions{})
//
// A Store is a directory:
//
//	layers/v1/sha256/HEX.sqsh   a layer, by the verified digest of its blob (package layer)
//	blobs/sha256/HEX            manifests, indexes and configurations, as they came
//	indexes/v1/sha256/HEX.gwi   the merged index of an image, by its manifest's digest (package merged)
//	indexes/v1/local/KEY.gwi    that of a squashfs file elsewhere, by its path, size, times and inode
//	refs/v1/KEY.json            what a reference led to when it was pulled
//	origins/v1/KEY/ALGO-HEX     that a repository has sent a blob, where users share the store
//	hot/v1/ALGO-HEX             what containers of an image of another store read first
//	holds/KEY.json              which image a named container needs
//	leases/                     what is in use; locks/ who works on what, and how far
//
// Every file appears under its name complete and synced, or not at all, so a store
// is valid after any crash; what is missing is made again by the next pull.
// Layers are keyed by the digest of bytes that were hashed here, never by what a
// configuration claims. Any number of goroutines and processes may use one store:
// what several want is made once, and the others see how far it is.
//
// A squashfs file can be an image in its place (OpenFile). What an overlay's upper
// directory changes of an image becomes one squashfs file (Opened.Commit, CommitDir).
//
// The package decides nothing about running: who runs a container opens the index
// and the layers of an Image. It knows no FUSE and no namespaces. Users have stores
// of their own; a store is refused to any but its owner.
package image
