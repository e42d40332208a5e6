#!/bin/sh
# No object of an instruction set's unit defines a weak symbol outside its own namespace: the linker keeps
# one of several, and the baseline could then run another instruction set's code.
set -eu
bad=0
objects=0
for object in $(find "$1" -path "*leanconv_*_*.dir*" -name "*.o"); do
  objects=$((objects + 1))
  set=$(echo "$object" | sed 's/.*leanconv_[a-z_]*_\([a-z0-9]*\)\.dir.*/\1/')
  found=$(nm -C "$object" | grep -E " [WVu] " | grep -v "leanconv::$set::" | grep -vE " w |DW.ref|__gxx" || true)
  if [ -n "$found" ]; then
    echo "$object defines, outside leanconv::$set:"
    echo "$found"
    bad=1
  fi
done
[ "$objects" -gt 0 ] || { echo "no object of any instruction set is in $1"; exit 1; }
[ "$bad" = 0 ] && echo "every weak symbol is in its instruction set's namespace"
exit "$bad"
