#!/usr/bin/env bash
# Draws README's picture, one simulated step of Llama-3-70B on 64 H100s; its page is build/step.html.
#
#   scripts/picture.sh [OUTPUT]     default: docs/step.svg
#
# ORRERY_BUILD: the build to run (default build/release, made by scripts/build.sh).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cd "$root"
mkdir -p build
"${ORRERY_BUILD:-build/release}/orrery" simulate --model llama-3-70b --cluster dgx-h100 --hosts 8 \
  --tp 8 --pp 4 --dp 2 --schedule interleaved --virtual-stages 2 --zero 1 --sequence-parallel \
  --recompute selective --global-batch 32 --sequence-length 8192 --html build/step.html >/dev/null
scripts/picture.py build/step.html "${1:-docs/step.svg}"
