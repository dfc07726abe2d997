#!/usr/bin/env bash
# Everything that must hold: release build with all tests; the same outputs from g++ -O0; then the rooms without LibTorch by clang++
# with AddressSanitizer and UndefinedBehaviorSanitizer: the same outputs, libFuzzer and the fast tests. Exits 0 only when every test
# passed.
#
#   scripts/test.sh [--fast] [ctest options...]
#
# --fast: only the release build and the labels unit, property, golden, lint. ORRERY_TEST_JOBS: tests at once (default 2).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fast=0
if [[ "${1:-}" == --fast ]]; then
  fast=1
  shift
fi
test_jobs="${ORRERY_TEST_JOBS:-2}"
fast_labels=(unit property golden)
# The slow searches for counter-examples and the benchmarks gain little from sanitizers and cost minutes under them; libFuzzer has its own.
sanitizer_labels=(unit property)
started=$SECONDS
summary=()
failed=0
if [[ "${CI:-}" == true ]]; then
  export GTEST_COLOR=no NINJA_STATUS='[%f/%t %es] '
  # Other cases of the properties every day; elsewhere their seed is 1.
  export RC_PARAMS="${RC_PARAMS:-seed=$(date -u +%Y%m%d)}"
  say "properties: RC_PARAMS=$RC_PARAMS"
fi

# run_label PRESET LABEL: one line of the summary. $shown_preset: what the line says instead of PRESET.
run_label() {
  local preset="$1" label="$2" log begin=$SECONDS status=0 count
  shift 2
  log="$root/build/$preset/ctest-$label.log"
  ctest --test-dir "$root/build/$preset" -L "^$label\$" -j "$test_jobs" --output-on-failure "$@" >"$log" 2>&1 || status=$?
  count="$(grep -oE 'out of [0-9]+' "$log" | tail -1 | grep -oE '[0-9]+' || true)"
  if grep -q 'No tests were found' "$log"; then
    summary+=("$(printf '%-8s %-13s  none' "${shown_preset:-$preset}" "$label")")
    return
  fi
  local verdict=ok
  if ((status != 0)); then
    verdict=FAILED
    failed=1
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.*Passed|^ *Start +[0-9]+:' "$log" || true
  fi
  local skipped
  skipped="$(grep -c '\*\*\*Skipped' "$log" || true)"
  summary+=("$(printf '%-8s %-13s %5s tests %3s skipped %5ds  %s' "${shown_preset:-$preset}" "$label" "${count:-?}" "$skipped" \
    $((SECONDS - begin)) "$verdict")")
  say "${summary[-1]}"
}

"$root/scripts/setup.sh"
configure release -DORRERY_TESTS=ON
run_label release lint "$@"  # in seconds, before an hour of building
build release -DORRERY_TESTS=ON
if ((fast)); then
  for label in "${fast_labels[@]}"; do run_label release "$label" "$@"; done
else
  for label in unit property oracle differential golden fuzz bench browser multirank gpu; do
    run_label release "$label" "$@"
  done
  build debug
  # Unoptimised, the same bytes; and by another compiler. Experiments have bars, not bytes.
  same_bytes=(golden -E 'golden\.Experiments\.')
  shown_preset=-O0 ORRERY_CLI="$root/build/debug/orrery" run_label release "${same_bytes[@]}" "$@"
  build_targets="orrery_cli fuzzers unit_and_property" build dev -DORRERY_TESTS=ON
  shown_preset=clang++ ORRERY_CLI="$root/build/dev/orrery" run_label release "${same_bytes[@]}" "$@"
  run_label dev fuzz "$@"
  # Sanitizers look at what code does, which some of the cases show as well.
  export RC_PARAMS="${RC_PARAMS:-} max_success=15"
  for label in "${sanitizer_labels[@]}"; do run_label dev "$label" "$@"; done
fi

printf '\n%-8s %-13s\n' preset label
printf '%s\n' "${summary[@]}"
printf 'total %d min %d s: %s\n' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) \
  "$( ((failed)) && echo FAILED || echo 'all passed')"
exit "$failed"
