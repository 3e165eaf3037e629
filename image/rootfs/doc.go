// Package rootfs shows an image as a file system: through FUSE, served from the merged
// index and the layers without unpacking anything, or as a directory written out.
//
// Begin with New, which makes a Tree of an open image. AddFile and Mountpoint put
// files and places to mount on into it; the image itself never changes. Then either
//
//   - a process in a user and mount namespace of its own opens /dev/fuse, mounts it with
//     the data that MountOptions gives, and hands over the descriptor, which Serve
//     answers until the mount is gone; or
//   - Extract writes the tree into a directory, where there is no FUSE.
//
// Paths are resolved inside the image's root, whatever symlinks say, as openat2(2) does
// with RESOLVE_IN_ROOT.
//
// # What is shown
//
// All files belong to one user and group, since a container that an ordinary user
// starts has but one of each. Of extended attributes only those of users are shown, and
// none that overlayfs reads: the others would be the image's say in what the kernel
// does. Devices, setuid and setgid bits are shown as the image has them; mount with
// nodev and nosuid. All is read-only.
//
// # Concurrency
//
// New, AddFile and Mountpoint are for one goroutine. After them everything is for any
// number at once; a Tree that is served must not be added to any more. The index and
// the layers stay the caller's, who closes them after Server.Wait.
//
// # Hostile images
//
// A damaged layer makes reading fail with EIO, and one line in the log says which file
// was hit; the rest of the image stays readable. That the tree is right as a whole only
// merged.Check proves.
//
// # What it does not do
//
// It does not mount, writes nothing back, and does not check hashes.
package rootfs
