#!/usr/bin/env bash
# Makes the root folder of the container: the program, the shared libraries that it needs, and one
# user who is not root. Nothing else is in it: no shell, no package manager.
#
# usage: deploy/root.sh PROGRAM FOLDER
set -euo pipefail
program=$1
root=$2
mkdir -p "$root/usr/bin" "$root/etc" "$root/models" "$root/tmp"
install -m 755 "$program" "$root/usr/bin/surefoot"
strip "$root/usr/bin/surefoot" 2>/dev/null || true
# The dynamic linker and every library that it would load, at the paths where it looks for them.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
  install -D -m 755 "$(readlink -f "$library")" "$root$library"
done
printf 'surefoot:x:65532:65532::/tmp:/usr/bin/surefoot\n' > "$root/etc/passwd"
printf 'surefoot:x:65532:\n' > "$root/etc/group"
chmod 1777 "$root/tmp"
