# shellcheck shell=bash
# Sourced by the other scripts: where things are, and what a build shares.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="${ORRERY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orrery}"
jobs="${ORRERY_JOBS:-$(nproc)}"
export ORRERY_CACHE="$cache"
export ORRERY_PYTHON="${ORRERY_PYTHON:-$cache/venv/bin/python}"
export CCACHE_DIR="${CCACHE_DIR:-$cache/ccache}" CCACHE_BASEDIR="${CCACHE_BASEDIR:-$root}" CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}" CCACHE_PCH_EXTSUM=1  # what precompiled headers need
export CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-5G}"
# Ranks of Open MPI in containers: as root, and more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }

# configure PRESET [cmake options...]: makes build/PRESET, ready to build.
configure() {
  local preset="$1"
  shift
  say "configure $preset"
  (cd "$root" && cmake --preset "$preset" "$@" >"/tmp/orrery-configure-$$.log" 2>&1) ||
    { cat "/tmp/orrery-configure-$$.log"; rm -f "/tmp/orrery-configure-$$.log"; return 1; }
  rm -f "/tmp/orrery-configure-$$.log"
}

# build PRESET [cmake options...]: configures and builds build/PRESET; only $build_targets (a list) when that is set.
build() {
  local preset="$1"
  configure "$@"
  say "build $preset (-j$jobs)"
  # shellcheck disable=SC2086
  cmake --build "$root/build/$preset" -j "$jobs" ${build_targets:+--target $build_targets}
  say "built $preset"
}
