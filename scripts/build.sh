#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json.
#
#   scripts/build.sh [PRESET] [cmake options...]     default preset: release
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset="${1:-release}"
shift || true
build "$preset" "$@"
