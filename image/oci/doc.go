// Package oci knows the documents of OCI images and where they lie on this
// machine.
//
// The types follow OCI's image-spec; Docker's documents have the same fields and
// are taken too. [DecodeIndex], [DecodeManifest] and [DecodeConfig] are pure, have
// limits and refuse what two readers could understand differently: doubled keys,
// documents that are index and manifest at once, data behind the end.
// [Index.Choose] picks the manifest for a platform.
//
// [OpenLayout], [OpenArchive], [OpenDockerArchive] and [SaveFromEngine] give a
// [Local], an image on this machine. It answers as a registry does: a descriptor,
// manifests that were hashed, and blobs, which the caller hashes while it reads
// them. Names within layouts and archives are made from digests or looked up in
// what a scan found; nothing outside is ever opened.
package oci
