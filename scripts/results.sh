#!/usr/bin/env bash
# Writes docs/results/<name>.md: what a command prints here, with the command, the commit, the machine and the day.
#
#   scripts/results.sh [NAME...]     default: the cheap pages; --list: all pages and what each needs
#
# ORRERY_BUILD: the build to run (default build/release, made by scripts/build.sh; benches and tests need
# -DORRERY_TESTS=ON). Pages named record_* are kept by hand: dated runs on machines that are not here.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cd "$root"
build_folder="${ORRERY_BUILD:-build/release}"
orrery="$build_folder/orrery"
pages=docs/results
scratch=build/results

# name | minutes on two cores | needs | title
catalog="plan|1||Plans found
simulate|1||Plans simulated
explain|1||A plan explained
sweep|1||Questions over a grid
collective|1||Collectives, message by message
topology|1||Networks in numbers
validate|15|LibTorch|Predicted against trained on this machine
search_speed|3|tests|How fast the search is
simulator_speed|10|tests|How fast the simulator is
galvatron_plans|2|tests|Against the plans of Galvatron's tool
galvatron_tables|3||Galvatron's published tables
osdp_tables|1||OSDP's published tables
primepar|1||PrimePar's published figures
published_steps|10||Predicted against published training steps
beyond|1||Predicted against published steps on H100
energy|1||Predicted against measured watts
mixed|1||Predicted against published trials on mixed clusters
published_collectives|2||Predicted against published collectives
tests|60|LibTorch|Tests by label"
cheap=(plan simulate explain sweep collective topology beyond energy mixed osdp_tables)

machine() {
  local cpu memory
  cpu="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
  memory="$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)"
  printf '%s, %s cores, %s, %s' "${cpu:-unknown processor}" "$(nproc)" "$memory" \
    "$(. /etc/os-release && echo "$PRETTY_NAME")"
}

# show COMMAND...: the command as a person types it, then what it prints.
show() {
  local shown="$*"
  shown="${shown//$build_folder\/orrery/orrery}"
  printf '```\n$ %s\n' "${shown//$build_folder/build/release}"
  "$@" 2>&1 | sed "s|$root/||g; s|$HOME|~|g" || printf '(exit code %s)\n' "${PIPESTATUS[0]}"
  printf '```\n\n'
}

page_sweep() {
  show "$orrery" sweep --model llama-3-70b --cluster dgx-h100 --global-batch 1024 --sequence-length 8192 \
    --vary hosts=1..512
  show "$orrery" sweep --model llama-3-70b --hosts 16 --global-batch 1024 --sequence-length 8192 \
    --vary cluster=dgx-a100,dgx-h100,dgx-b200 --vary ib.bandwidth=1x,2x
  show "$orrery" sweep --plan "$scratch/plan-70b.json" --vary nvlink.bandwidth=0.5x,1x,2x --vary ib.bandwidth=0.25x,1x
}

page_plan() {
  show "$orrery" plan --model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --memory 36GiB \
    --global-batch 64 --sequence-length 2048 --out "$scratch/plan.json"
  show "$orrery" plan --model llama-3-70b --cluster dgx-h100 --hosts 16 --global-batch 256 \
    --sequence-length 8192 --out "$scratch/plan-70b.json"
  show "$orrery" plan --model llama-2-13b --cluster dgx-a100 --hosts 2 --global-batch 64 \
    --sequence-length 4096 --target megatron
}

page_simulate() {
  show "$orrery" simulate --model llama-3-8b --cluster dgx-h100 --tp 2 --dp 4 --zero 1 --global-batch 64
  show "$orrery" simulate --model llama-2-7b --cluster dgx-a100 --tp 2 --pp 2 --zero 1 --global-batch 64 \
    --sequence-length 2048 --mtbf 50000h --checkpoint-time 30s
  printf '{schema: orrery.scenario/1, name: bad host, links: [{host: 1, kind: ib, rate: 0.25}], %s}\n' \
    'slow: [{host: 1, device: 3, slowdown: 1.3}]' >"$scratch/bad-host.yaml"
  show cat "$scratch/bad-host.yaml"
  show "$orrery" simulate --model llama-2-7b --cluster dgx-a100 --hosts 2 --tp 2 --pp 2 --zero 1 \
    --global-batch 64 --sequence-length 2048 --scenario "$scratch/bad-host.yaml"
}

page_explain() {
  "$orrery" plan --model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --memory 36GiB \
    --global-batch 64 --sequence-length 2048 --out "$scratch/plan.json" >/dev/null
  show "$orrery" explain --plan "$scratch/plan.json" --profile llama2-7b-a100-8gpu --memory 36GiB --versus tp=8,pp=1
}

page_collective() {
  show "$orrery" collective --cluster dgx-h100 --bytes 1GiB
  show "$orrery" collective --cluster dgx-h100 --hosts 2 --bytes 1GiB
  show "$orrery" collective --cluster dgx-a100 --hosts 2 --bytes 16MiB
}

page_topology() {
  show "$orrery" topology show dgx-h100
  show "$orrery" topology show h100-rail-optimised --hosts 64
}

page_validate() {
  show "$orrery" validate --model gpt2-tiny --ranks 2
  show "$orrery" validate --model llama-tiny --ranks 2
}

page_search_speed() {
  show "$build_folder/tests/bench_search" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
  show "$build_folder/tests/bench_search_instance" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
  show "$build_folder/tests/bench_search_partition"
}

page_simulator_speed() {
  show "$build_folder/tests/bench_sim_step"
  show "$build_folder/tests/bench_sim_network"
  show "$build_folder/tests/bench_sim_kernel"
}

page_galvatron_plans() {
  show "$build_folder/tests/search_differential_test" --gtest_brief=1
}

# An experiment prints Markdown.
experiment() {
  printf '`%s`; what it means: [README](../../%s/README.md).\n\n' "$1" "$(dirname "$1")"
  python3 "$1" --orrery "$orrery" "${@:2}"
}
page_galvatron_tables() { experiment experiments/galvatron/run.py; }
page_osdp_tables() { experiment experiments/osdp/run.py; }
page_primepar() { experiment experiments/primepar/run.py; }
page_published_steps() { experiment experiments/validation/run.py; }
page_beyond() { experiment experiments/beyond/run.py || true; }  # ends with 1 while a bar is missed
page_energy() { experiment experiments/energy/run.py || true; }  # as above
page_mixed() { experiment experiments/mixed/run.py --rows || true; }  # ends with 1 while a bar is missed
page_published_collectives() {
  experiment experiments/collectives/run.py --no-plot
  cat experiments/collectives/table.md
}

# The table at the end of scripts/test.sh.
page_tests() {
  printf '`scripts/test.sh` ended with:\n\n```\n'
  scripts/test.sh 2>&1 | sed -n '/^preset /,$p'
  printf '```\n'
}

write_page() {
  local name="$1" title
  title="$(sed -n "s/^$name|.*|//p" <<<"$catalog")"
  [[ -n "$title" ]] || { echo "results.sh: no page '$name'; see scripts/results.sh --list" >&2; exit 1; }
  say "$name"
  {
    printf '# %s\n\n' "$title"
    printf 'Written by `scripts/results.sh %s` on %s, commit %s.\n' "$name" "$(date +%F)" \
      "$(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!docs/results' || echo -dirty)"
    printf 'Machine: %s.\n\n' "$(machine)"
    "page_$name"
  } >"$scratch/$name.md"
  sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$scratch/$name.md" >"$pages/$name.md"
}

# docs/results/README.md: what is there, and how to write what is not.
write_index() {
  {
    printf '# Results\n\nWhat commands printed, with commit, machine and day. '
    printf '`scripts/results.sh NAME` writes a page anew.\n'
    printf 'Records are kept by hand: runs on machines or days that are not here.\n\n'
    printf '| page | name | minutes | needs |\n|---|---|---|---|\n'
    while IFS='|' read -r name minutes needs title; do
      [[ -f "$pages/$name.md" ]] && title="[$title]($name.md)"
      printf '| %s | `%s` | %s | %s |\n' "$title" "$name" "$minutes" "$needs"
    done <<<"$catalog"
    for record in "$pages"/record_*.md; do
      printf '| [%s](%s) | | | |\n' "$(sed -n '1s/^# //p' "$record")" "$(basename "$record")"
    done
  } >"$pages/README.md"
}

if [[ "${1:-}" == --list ]]; then
  printf '%-22s %8s  %-10s  %s\n' name minutes needs page
  while IFS='|' read -r name minutes needs title; do
    printf '%-22s %8s  %-10s  %s\n' "$name" "$minutes" "$needs" "$title"
  done <<<"$catalog"
  exit 0
fi
[[ -x "$orrery" ]] || { echo "results.sh: $orrery is not there; run scripts/build.sh" >&2; exit 3; }
mkdir -p "$pages" "$scratch"
if (($# == 0)); then
  set -- "${cheap[@]}"
fi
for name in "$@"; do write_page "$name"; done
write_index
