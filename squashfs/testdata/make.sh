#!/bin/sh
# Makes the small images in this directory: the seeds of the fuzz targets, and what
# the tests cut and flip. Run it as root, for the devices and the trusted xattrs.
# Needs mksquashfs 4.5 or later, gensquashfs (squashfs-tools-ng) and setfattr.
set -eu
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
t=$dir/tree
mkdir -p "$t/a/b/c" "$t/nothing" "$t/many"
echo hello >"$t/hello"
ln "$t/hello" "$t/a/hard"
ln -s a/b "$t/link"
ln -s "$(printf 'x%.0s' $(seq 300))" "$t/long-link"
: >"$t/empty"
seq 1200 >"$t/text"                # a block and a tail of 4 KiB blocks
head -c 4096 "$t/text" >"$t/block" # whole blocks only
cp "$t/text" "$t/same"
truncate -s 20000 "$t/sparse"
printf data | dd of="$t/sparse" bs=1 seek=9000 conv=notrunc status=none
mkfifo "$t/fifo"
mknod "$t/char" c 5 300
mknod "$t/block-dev" b 259 70000
for i in $(seq 300); do ln -s "$i" "$t/many/entry-number-$i"; done
chown 1000:2000 "$t/hello"
chmod 4755 "$t/text"
setfattr -n user.mime -v text/plain "$t/text"
setfattr -n trusted.overlay.opaque -v y "$t/a"
long=$(printf 'v%.0s' $(seq 600))
setfattr -n user.long -v "$long" "$t/text"
setfattr -n user.long -v "$long" "$t/hello"
find "$t" -exec touch -h -d @1000000000 {} +

for comp in gzip zstd lz4 xz lzo; do
	rm -f $comp.sqfs
	mksquashfs "$t" $comp.sqfs -comp $comp -b 4096 -noappend -quiet -no-progress -mkfs-time 0 -nopad
done
# Metadata as it is, so that flips and mutations meet its fields.
rm -f plain.sqfs plain-frag.sqfs ng.sqfs
mksquashfs "$t" plain.sqfs -comp zstd -b 4096 -noI -noX -noId -noappend -quiet -no-progress -mkfs-time 0 -nopad
rm -rf "$t/many"
mksquashfs "$t" plain-frag.sqfs -comp lz4 -b 4096 -noI -noD -noF -noX -noId -no-exports -always-use-fragments \
	-noappend -quiet -no-progress -mkfs-time 0 -nopad
gensquashfs -q -c zstd -b 4096 -x -D "$t" ng.sqfs
ls -l
