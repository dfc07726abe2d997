#!/usr/bin/env bash
# The main job from a fresh checkout: plan a model for a cluster, simulate the plan, and hold predicted against real
# execution on this machine.
#
#   scripts/demo.sh [OUTPUT_FOLDER]     default: build/demo
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cd "$root"
out="${1:-build/demo}"
orrery="$root/build/release/orrery"

profile=llama2-7b-a100-8gpu
plan=(plan --model llama-2-7b --cluster dgx-a100 --profile "$profile" --memory 36GiB --global-batch 64
  --sequence-length 2048 --out "$out/plan.json")
simulate=(simulate --plan "$out/plan.json" --profile "$profile" --memory 36GiB --trace "$out/trace.json")
validate=(validate --model gpt2-tiny --ranks 2)

"$root/scripts/setup.sh"
build_targets=orrery_cli build release
mkdir -p "$out"

run() {
  printf '\n$ orrery %s\n' "$*"
  "$orrery" "$@"
}
run "${plan[@]}"
run "${simulate[@]}"
run "${validate[@]}"
say "results in $out"
