#!/usr/bin/env bash
# clang writes the folder of a build into what it precompiles. Beside it, a checksum of what was read, for ccache to compare in its
# place (CCACHE_PCH_EXTSUM): the same in a clone elsewhere.
#
#   precompile.sh clang++ ... -MF DEPENDENCIES ... -o RESULT ...
set -euo pipefail
"$@"
while (($#)); do
  case "$1" in
    -MF) dependencies="$2" ;;
    -o) result="$2" ;;
  esac
  shift
done
sed -e '1s/^[^:]*://' -e 's/\\$//' "$dependencies" | xargs cat | sha256sum >"$result.sum"
