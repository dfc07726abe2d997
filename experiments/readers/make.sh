#!/usr/bin/env bash
# The four pages that readers get, and what --json says of the same: experiments/readers/make.sh FOLDER [orrery]
set -euo pipefail
cd "$(dirname "$0")/../.."
orrery="$(realpath "${2:-build/release/orrery}")"
export ORRERY_DATA="$PWD"
mkdir -p "$1" && cd "$1"
question=(--model llama-3-70b --cluster h100-fat-tree --global-batch 512 --sequence-length 8192)
"$orrery" plan "${question[@]}" --hosts 16 --target megatron --html plan.html --out plan.json --json >plan.key.json
"$orrery" explain --plan plan.json --html explain.html --json >explain.key.json
"$orrery" simulate --plan plan.json --html simulate.html --json >simulate.key.json
"$orrery" sweep "${question[@]}" --target megatron --vary hosts=8,16,32,64,128 --vary ib.bandwidth=0.5x,1x --tokens 1T \
  --price-per-gpu-hour '2.5$' --html sweep.html --json >sweep.key.json
