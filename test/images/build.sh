#!/bin/bash
# Builds a container image from Debian packages, with the layers that images for
# machine learning have, as an OCI layout: a base, and layers that add to it,
# replace files in it and delete some of its files.
#
#   build.sh torch DIR   7 layers, about 1.2 GB compressed, 2.8 GB unpacked
#   build.sh small DIR   4 layers, about 70 MB compressed, of the same kind
#
# DIR/layout is the result, tagged "1" and, with one small layer changed, "2". A
# complete result is kept: running it again does nothing. Needs root, mmdebstrap,
# umoci and a Debian mirror in apt's sources.
set -euo pipefail
kind=${1:?torch or small} dir=$(mkdir -p "${2:?directory}" && cd "$2" && pwd)
[[ -e $dir/complete ]] && exit 0
rm -rf "$dir/layout" "$dir/work"
mkdir -p "$dir/work"
work=$dir/work

cleanup() { umount -R "$work/root" 2>/dev/null || true; }
trap cleanup EXIT

# Layers are directories work/0, work/1, ...; a new one is what changed in an
# overlay of all before it.
layers=0
finish_layer() { # upper-directory
	# The kernel's whiteouts become OCI's (image-spec, layer.md).
	find "$1" -type c -print0 | while IFS= read -r -d '' f; do
		[[ $(stat -c %t:%T "$f") == 0:0 ]] || continue
		rm "$f"; : >"${f%/*}/.wh.${f##*/}"
	done
	getfattr -R -P -h --absolute-names -m '^trusted.overlay.opaque$' "$1" 2>/dev/null |
		sed -n 's/^# file: //p' | while IFS= read -r d; do
		: >"$d/.wh..wh..opq"
	done
	tar -C "$1" --numeric-owner --sort=name --xattrs --xattrs-exclude='trusted.*' -cf "$1.tar" .
}

# layer runs a command in the image's root; what it changes is a layer.
layer() {
	local lower="" i upper=$work/$((++layers))
	echo "build.sh: layer $layers: ${1:0:100}"
	for ((i = layers - 1; i >= 0; i--)); do lower+=${lower:+:}$work/$i; done
	mkdir -p "$upper" "$work/ovl$layers" "$work/root"
	mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work/ovl$layers" "$work/root"
	mount -t proc proc "$work/root/proc"
	touch "$work/root/etc/resolv.conf"
	mount --bind /etc/resolv.conf "$work/root/etc/resolv.conf"
	mount --bind /etc/apt/apt.conf.d "$work/root/etc/apt/apt.conf.d"
	chroot "$work/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C \
		/bin/sh -euc "$1"
	rm -rf "$work/root/var/cache/apt/archives"/*.deb
	umount -R "$work/root"
	finish_layer "$upper"
}

# What a power cut leaves of an unfinished build is removed, so nothing has to be synced.
install='apt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-unsafe-io'
echo "build.sh: layer 0: Debian's minbase"
mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$work/base.tar" /etc/apt/sources.list.d/*.sources 2>/dev/null ||
	mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$work/base.tar"
mkdir "$work/0"
tar -C "$work/0" --numeric-owner --xattrs -xf "$work/base.tar"
mv "$work/base.tar" "$work/0.tar"

case $kind in
torch)
	layer "apt-get update -q; $install python3 python3-pip python3-venv libpython3-dev"
	layer "$install build-essential cmake ninja-build git gdb"
	layer "$install openmpi-bin libopenmpi-dev libibverbs-dev ibverbs-utils librdmacm-dev"
	layer "$install python3-torch"
	layer "$install python3-scipy python3-matplotlib jupyter-notebook"
	layer 'mkdir -p /models; head -c 268435456 /dev/urandom >/models/weights.bin; rm -rf /usr/share/doc/* /usr/share/man/*'
	;;
small)
	layer "apt-get update -q; $install python3-minimal"
	layer 'mkdir -p /models; head -c 4194304 /dev/urandom >/models/weights.bin; rm -rf /usr/share/doc/* /usr/share/man/*'
	;;
*) echo "build.sh: $kind: want torch or small" >&2; exit 2 ;;
esac

# torchrun of Debian 12's torch dies on Python 3.11, whose Flag skips the zero
# member when iterated.
app='mkdir -p /app; printf "import sys\nprint(sys.version)\n" >/app/main.py; chmod 1777 /tmp
f=/usr/lib/python3/dist-packages/torch/distributed/elastic/multiprocessing/api.py
[ ! -e $f ] || sed -i "s/for s in Std:/for s in (Std.NONE, Std.OUT, Std.ERR, Std.ALL):/" $f'
layer "$app; echo version 1 >/app/version"

umoci init --layout "$dir/layout"
add() { # from tag, to tag, layer
	echo "build.sh: compressing ${3##*/}, $(stat -c %s "$3") bytes"
	umoci raw add-layer --image "$dir/layout:$1" --tag "$2" "$3"
}
umoci new --image "$dir/layout:base"
for ((i = 0; i < layers; i++)); do add base base "$work/$i.tar"; done
add base 1 "$work/$layers.tar"
echo version 2 >"$work/$layers/app/version"
finish_layer "$work/$layers"
add base 2 "$work/$layers.tar"
for tag in 1 2; do
	umoci config --image "$dir/layout:$tag" --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		--config.workingdir /app --config.cmd python3 --config.cmd /app/main.py
done
umoci rm --image "$dir/layout:base"
rm -rf "$work"
: >"$dir/complete"
