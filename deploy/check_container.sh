#!/usr/bin/env bash
# Runs the steps of deploy/Containerfile without a container engine: a minimal Debian made by debootstrap
# stands for the image that builds, and the program that is given for what `cargo build` makes there. Then
# the finished root folder is measured (under 100 MB), and the server in it is started as the user who is
# not root, with nothing but /tmp writable, asked, and stopped by SIGTERM. Needs root and debootstrap.
#
# usage: deploy/check_container.sh PROGRAM MODEL
set -euo pipefail
program=$(readlink -f "$1")
model=$(readlink -f "$2")
here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
port=18431
server=
cleanup() {
  [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
  umount -R "$work/root" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# Made once, from the mirror that this machine uses already, and kept for the next run.
base="${CARGO_TARGET_DIR:-target}/debian-bookworm"
if ! [ -d "$base" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | sort -u | head -1)
  mkdir -p "$(dirname "$base")"
  debootstrap --variant=minbase --include=binutils bookworm "$base.new" "$mirror" > "$work/log" || { tail -5 "$work/log"; rm -rf "$base.new"; exit 1; }
  mv "$base.new" "$base"
fi
cp -a "$base" "$work/build"
install -D "$program" "$work/build/source/target/release/surefoot"
install -D "$here/root.sh" "$work/build/source/deploy/root.sh"
chroot "$work/build" sh -c 'cd /source && deploy/root.sh target/release/surefoot /root-folder'
size=$(du -sb "$work/build/root-folder" | cut -f1)
echo "the container's root has $((size / 1000000)) MB"
[ "$size" -lt 100000000 ] || { echo "that is 100 MB or more"; exit 1; }

mkdir "$work/root"
mount --bind "$work/build/root-folder" "$work/root"
mkdir -p "$work/root/models/model" "$work/root/proc"
mount --bind -o ro "$model" "$work/root/models/model"
mount -t tmpfs tmpfs "$work/root/tmp"
mount -t proc proc "$work/root/proc"
mount -o remount,bind,ro "$work/root"
if touch "$work/root/usr/bin/x" 2>/dev/null; then echo "the root is writable"; exit 1; fi

env -i HOME=/tmp "$(command -v chroot)" --userspec=65532:65532 "$work/root" /usr/bin/surefoot serve /models/model --name model --port $port --quiet &
server=$!
for _ in $(seq 600); do
  curl -fsS "http://127.0.0.1:$port/ready" >/dev/null 2>&1 && break
  kill -0 "$server" || { echo "the server ended"; exit 1; }
  sleep 0.1
done
[ "$(stat -c %u "/proc/$server")" = 65532 ] || { echo "the server runs as root"; exit 1; }
curl -fsS "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
  -d '{"model": "model", "prompt": [5, 6], "max_tokens": 4}' | grep -q '"choices"'
kill -TERM "$server"
wait "$server" || { echo "the server ended with exit code $?"; exit 1; }
server=
echo "the server in it answered as user 65532 with a read-only root, and ended when asked"
