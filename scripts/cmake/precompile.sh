#!/usr/bin/env bash
# The same headers, precompiled in two folders, are not the same bytes. So beside them stands a checksum of what was read, for
# ccache to compare in their place (CCACHE_PCH_EXTSUM).
#
#   precompile.sh c++ ... -MF DEPENDENCIES ... -o RESULT ...
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
