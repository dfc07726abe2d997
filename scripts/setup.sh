#!/usr/bin/env bash
# Installs what Orrery needs on Debian 12: packages by apt (root), LibTorch in a Python environment of its own.
#
#   scripts/setup.sh [--no-executor]
#
# Safe to run again; once everything is there it touches no network. The environment and the compiler cache are in
# $ORRERY_CACHE (default: ~/.cache/orrery). ORRERY_PYTHON names a Python that already has torch >= 2.8 instead.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

torch_version=2.11.0
# libtorch_cpu.so of that wheel loads these two, also where there is no GPU.
cuda_wheels=("nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cupti==13.0.*")
packages=(g++ clang clang-format cmake ninja-build ccache mold pkg-config git python3 python3-venv
  libyaml-dev nlohmann-json3-dev libexpected-dev libfmt-dev libboost-graph-dev libboost-program-options-dev
  libxxhash-dev libpugixml-dev libsqlite3-dev libhwloc-dev libjemalloc-dev libopenmpi-dev openmpi-bin
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev libglpk-dev libsimgrid-dev chromium)

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    say "packages: all ${#packages[@]} are there"
    return
  fi
  say "packages: installing ${missing[*]}"
  local sudo=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "setup.sh: root is needed to install: ${missing[*]}" >&2; exit 3; }
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Prints the folder of the torch package of a Python, without importing it.
torch_folder() {
  "$1" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("torch").origin))' 2>/dev/null
}

# True when libtorch_cpu.so finds all it loads, in the wheels beside it or in a CUDA toolkit.
torch_is_whole() {
  local folder
  folder="$(torch_folder "$1")" && [[ -f "$folder/lib/libtorch_cpu.so" ]] || return 1
  local beside=/usr/local/cuda/lib64:/usr/local/cuda/extras/CUPTI/lib64
  ! LD_LIBRARY_PATH="$beside:${LD_LIBRARY_PATH:-}" ldd "$folder/lib/libtorch_cpu.so" | grep -q 'not found'
}

install_torch() {
  if torch_is_whole "$ORRERY_PYTHON"; then
    say "LibTorch: $(torch_folder "$ORRERY_PYTHON")"
    return
  fi
  if [[ "$ORRERY_PYTHON" != "$cache/venv/bin/python" ]]; then
    echo "setup.sh: ORRERY_PYTHON=$ORRERY_PYTHON has no usable torch" >&2
    exit 3
  fi
  mkdir -p "$cache"
  [[ -x "$ORRERY_PYTHON" ]] || { say "LibTorch: new environment $cache/venv"; python3 -m venv "$cache/venv"; }
  if ! torch_folder "$ORRERY_PYTHON" >/dev/null; then
    say "LibTorch: installing torch $torch_version (about 0.5 GB)"
    "$ORRERY_PYTHON" -m pip install -q --no-deps --disable-pip-version-check "torch==$torch_version"
  fi
  if ! torch_is_whole "$ORRERY_PYTHON"; then
    say "LibTorch: installing ${cuda_wheels[*]}"
    "$ORRERY_PYTHON" -m pip install -q --no-deps --disable-pip-version-check "${cuda_wheels[@]}"
  fi
  torch_is_whole "$ORRERY_PYTHON" || { echo "setup.sh: LibTorch lacks libraries; see ldd of libtorch_cpu.so" >&2; exit 3; }
}

install_packages
if [[ "${1:-}" != --no-executor ]]; then
  install_torch
fi
mkdir -p "$CCACHE_DIR"
say "ready; caches in $cache"
