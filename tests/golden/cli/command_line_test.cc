/// Commands with their whole output: exit code, stdout, stderr. Expected texts are
/// expected/<name>.txt; after an intended change ORRERY_UPDATE_GOLDEN=1 writes them anew, and the
/// difference is read before it is committed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "run_cli.h"
#include "tests/support/paths.h"

namespace orrery::golden {
namespace {

struct Case {
  std::string name;
  std::string arguments;
  std::map<std::string, std::string> files = {};  // made before the command runs
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.arguments; }

const char* const kPlan = R"({
  "schema": "orrery.plan/1",
)";

const char* const kMixture = R"({
  "model_type": "mixtral",
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "intermediate_size": 128,
  "num_local_experts": 4,
  "num_experts_per_tok": 5,
  "vocab_size": 256,
  "max_position_embeddings": 64
})";

const char* const kCluster = R"(name: small
description: two devices on one switch
device:
  name: D
  peak_fp32: 10TFLOP/s
  latncy: 3us
)";

const char* const kProfile =
    R"({"schema": "orrery.profile/1", "name": "two products",
 "provenance": {"source": "made for this test"}, "device": "A100",
 "operators": [{"shape": {"kind": "qkv", "dtype": "bf16", "sequences": 4, "tokens": 1024,
  "in": 768, "out": 2304, "bias": true}, "phase": "F", "seconds_median": 9e-5, "samples": 9},
               {"shape": {"kind": "mlp_in", "dtype": "bf16", "sequences": 1, "tokens": 1024,
                "in": 768, "out": 3072, "bias": true}, "phase": "F", "seconds_median": 4e-5,
                "samples": 9}]}
)";

/// A negative time, a type left out, a unit in place of seconds, an unknown phase, bandwidth and
/// points at once.
const char* const kPlantedProfile =
    R"({"schema": "orrery.profile/1", "name": "planted", "provenance": {"source": "made for )"
    R"(this test"},
 "operators": [{"shape": {"kind": "qkv", "dtype": "bf16", "sequences": 4, "tokens": 1024, )"
    R"("in": 768, "out": 2304}, "phase": "F", "seconds_median": -9e-5},
               {"shape": {"kind": "qkv", "sequences": 4, "tokens": 1024, "in": 768, "out": )"
    R"(2304}, "phase": "F", "seconds_median": 9e-5},
               {"shape": {"kind": "mlp_in", "dtype": "bf16", "sequences": 4, "tokens": 1024, )"
    R"("in": 768, "out": 3072}, "phase": "F", "seconds_median": "40us"},
               {"shape": {"kind": "mlp_in", "dtype": "bf16", "sequences": 4, "tokens": 1024, )"
    R"("in": 768, "out": 3072}, "phase": "X", "seconds_median": 4e-5}],
 "collectives": [{"op": "all_reduce", "size": 8, "bus_bandwidth_bytes_per_second": 1e11, )"
    R"("points": [{"bytes": 1024, "seconds": 1e-5}]}]}
)";

const char* const kTruncatedProfile =
    R"({"schema": "orrery.profile/1", "name": "cut", "provenance": {"source": "made for this )"
    R"(test"}, "operators": [{"shape":)";
const char* const kOtherProfile =
    R"({"schema": "orrery.profile/1", "name": "other",
 "provenance": {"source": "made for this test"}, "device": "H100",
 "collectives": [{"op": "all_reduce", "size": 8, "bus_bandwidth_bytes_per_second": 1e11}]}
)";

const char* const kInstance = R"({"schema": "orrery.instance/1", "budget_bytes": 24,
 "layers": [{"count": 2, "options": [{"name": "fast", "time_ps": 10, "memory_bytes": 9},
  {"name": "small", "time_ps": 17, "memory_bytes": 4}]},
            {"options": [{"name": "fast", "time_ps": 5, "memory_bytes": 12},
             {"name": "small", "time_ps": 9, "memory_bytes": 6}]}],
 "transition_ps": [[0, 3], [3, 0]]}
)";

const char* const kWrongInstance = R"({"schema": "orrery.instance/1", "budget_bytes": -3,
 "layers": [{"options": [{"name": "a", "time_ps": 1.5, "memory_bytes": 3},
                         {"name": "a", "time_ps": "3", "memory_byte": 3}]},
            {"options": []}],
 "transition_ps": [[0]]}
)";

const char* const kWrongTransitions = R"({"schema": "orrery.instance/1", "budget_bytes": 3,
 "layers": [{"options": [{"name": "a", "time_ps": 1, "memory_bytes": 3}, {"name": "b", )"
                                      R"("time_ps": 3, "memory_bytes": 1}]},
            {"options": [{"name": "a", "time_ps": 1, "memory_bytes": 3}]}],
 "transition_ps": [[0, 3], [3, 0]]}
)";

const char* const kScenario = R"(schema: orrery.scenario/1
name: one bad host
seed: 7
links:
  - {host: 1, kind: ib, rate: 0.25} # a quarter of its cards' width
  - {host: 0, at: "gpu[2]", kind: nvlink, failed: true} # traffic goes around, over PCIe
slow:
  - {host: 1, device: 3, slowdown: 1.3}
background:
  - {from: 4, to: 12, rate: 10 GB/s}
failures: {mtbf: 50000 h, checkpoint: 30 s}
)";
const char* const kJitter = "schema: orrery.scenario/1\nname: noise\njitter: {sigma: 0.03}\n";
const char* const kLinks =
    "schema: orrery.scenario/1\nname: half\nlinks: [{host: 1, at: 'nic[0]', rate: 0.5}]\n";
const char* const kFails =
    "schema: orrery.scenario/1\nname: six cables for a second\nlinks: [{host: 1, at: 'nic[0-5]', "
    "kind: ib, failed: true, since: 500 ms, until: 1.5 s}]\n";
const char* const kBeside = R"(schema: orrery.scenario/1
name: two tenants
hosts: [0, 4, 2, 6]
jobs:
  - {name: the same elsewhere, hosts: [1, 5, 3, 7], start: 20 ms}
steps: 2
)";
const char* const kCrowded = "schema: orrery.scenario/1\njobs:\n  - {name: twin, hosts: [1]}\n";
const char* const kCut =
    "schema: orrery.scenario/1\nlinks:\n  - {host: 1, kind: ib, failed: true}\n";
const char* const kWrongScenario = R"(schema: orrery.scenario/1
links:
  - {host: 2, kind: ib, rate: 0.25}
  - {host: 0, at: "nik[1]", failed: true}
  - {host: 0, kind: ib, rate: 0.5, failed: true}
  - {host: 1, kind: nvlink, rate: 50 %}
slow:
  - {host: 1, device: 8, slowdown: 1.3}
  - {device: 3, slowdwn: 1.3}
jitter: {sigma: 2}
background:
  - {from: 0, to: 16, rate: 3 GB/s}
)";
const char* const kGalvatron = R"({
    "pp_deg": 2,
    "tp_sizes_enc": "1,1,1,1,1,1,2,2,2,2,2,2",
    "tp_consecutive_flags": "1,1,1,1,1,1,1,1,1,1,1,1",
    "dp_types_enc": "1,1,1,1,1,1,0,0,0,0,0,0",
    "use_sp": "0,0,0,0,0,0,0,0,0,0,0,0",
    "checkpoint": "1,1,0,0,0,0,0,0,0,0,0,0",
    "global_bsz": 64,
    "chunks": 8,
    "pp_division": "6,6",
    "pipeline_type": "pipedream_flush",
    "default_dp_type": "zero2",
    "vtp": 1,
    "vsp": 0
}
)";
const char* const kWrongGalvatron = R"({
    "pp_deg": 2,
    "tp_sizes_enc": "1,1,1,1,1,1,2,2,3",
    "dp_types_enc": "1,1,1,1,1,1,0,0,x,0,0,0",
    "global_bsz": 64,
    "chunk": 8,
    "pipeline_type": "pipedream"
}
)";
const char* const kMegatron = R"(#!/bin/bash
# pretraining of Llama-2-70B
GPUS_PER_NODE=8
TP=8
TORCHRUN_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes 4)
MODEL_ARGS="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 4096"
TRAINING_ARGS=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size=4 \
    --micro-batch-size 1 --global-batch-size 128
    --sequence-parallel --use-distributed-optimizer --bf16
    --recompute-granularity full --recompute-method block --recompute-num-layers 5
    --lr 1.5e-4
)
torchrun ${TORCHRUN_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]}
)";
const char* const kWrongMegatron = R"(--tensor-model-parallel-size 8
--pipeline-model-paralel-size 4
--num-layers 32
--pipeline-model-parallel-layout Et*3|(tt|)*29,m|L
--micro-batch-size $MBS
--recompute-granularity some
)";

const char* const kRows =
    R"(id,cluster,layers,hidden,heads,gpus,tp,pp,micro_batch,global_batch,recompute,)"
    R"(sequence_parallel,virtual_stages,precision,zero,"note, with a comma"
22B,,48,6144,64,8,8,1,4,4,full,no,,fp16,,"Megatron, 22 billion"
22B,,48,6144,64,8,8,1,4,4,selective,yes,,fp16,,"says ""selective"""
175B,dgx-a100,96,12288,96,64,8,8,1,64,selective,yes,3,,1,
uneven,dgx-h100,30,4096,32,64,8,4,1,64,,yes,3,,1,thirty layers in twelve chunks
full,,24,8192,64,8,8,1,16,16,none,no,,,,
slip,,48,6144,64,8,6,1,4,4,ful,no,,,5,
short,,48
batch,,48,6144,64,64,8,1,4,4,full,no,,,,
cluster,dgx-a10,48,6144,64,8,8,1,4,4,full,no,,,,
)";
const char* const kMatrix = R"(        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV12    PXB     0-31    0
GPU1    NV12     X      SYS     32-63   1
NIC0    PXB     SYS      X

Legend:
)";
const char* const kWrongSlurm = R"(SwitchName=leaf0 Nodes=node[00-15
SwitchName=leaf1 Nods=node[16-31]
SwitchName=spine Switches=leaf[0-2]
)";

const std::string kTwoHosts =
    "simulate --model llama-2-7b --cluster dgx-a100 --hosts 2 --tp 2 --pp 2 --zero 1 "
    "--global-batch 64 --sequence-length 2048";

const std::string kTenant =
    "simulate --model llama-2-7b --cluster a100-leaf-spine-4to1 --hosts 8 --tp 8 --dp 4 --zero 3 "
    "--global-batch 32 --sequence-length 2048";

std::vector<Case> cases() {
  return {
      {"help", "--help"},
      {"plan_help", "plan --help"},
      {"unknown_command", "simulat"},
      {"unknown_option", "simulate --modle gpt2 --cluster dgx-a100"},
      {"unknown_model", "simulate --model lama-2-7b --cluster dgx-a100"},
      {"unknown_cluster", "simulate --model gpt2 --cluster dgx-a10"},
      {"unknown_key", "simulate --model gpt2 --cluster bad.yaml", {{"bad.yaml", kCluster}}},
      {"missing_unit", "plan --model gpt2 --cluster dgx-a100 --memory 36"},
      {"tp_does_not_divide_heads", "simulate --model gpt2 --cluster dgx-a100 --tp 8"},
      {"interleaved_micro_batches",
       "simulate --model gpt2 --cluster dgx-a100 --pp 4 --schedule interleaved --virtual-stages 3 "
       "--global-batch 12"},
      {"zero_devices", "simulate --model gpt2 --cluster dgx-a100 --tp 0"},
      {"zero_hosts", "simulate --model gpt2 --cluster dgx-a100 --hosts 0"},
      {"too_many_ranks", "simulate --model llama-2-7b --cluster dgx-a100 --tp 8 --dp 4"},
      {"truncated_json", "simulate --plan plan.json", {{"plan.json", kPlan}}},
      {"missing_file", "simulate --plan nowhere.json"},
      {"unreadable_file", "simulate --plan ."},
      {"infeasible",
       "plan --model llama-2-7b --cluster dgx-a100 --memory 4GiB --global-batch 64 "
       "--sequence-length 2048"},
      {"nothing_divides",
       "plan --model gpt2-xl --cluster dgx-a100 --hosts 8 --global-batch 1 --space "
       "dp,zero1,zero3,tp,sp,pp,recompute"},
      {"infeasible_simulation",
       "simulate --model llama-2-7b --cluster dgx-a100 --dp 8 --memory 40GiB --sequence-length "
       "2048"},
      {"more_choices_than_experts",
       "simulate --model ./mixture.json --cluster dgx-a100",
       {{"mixture.json", kMixture}}},
      {"ep_does_not_divide_experts",
       "simulate --model qwen1.5-moe-a2.7b --cluster dgx-h100 --ep 8"},
      {"experts_of_a_dense_model", "simulate --model llama-2-7b --cluster dgx-h100 --ep 8"},
      {"simulate_experts",
       "simulate --model mixtral-8x7b --cluster dgx-h100 --hosts 2 --tp 2 --ep 8 --zero 1 "
       "--recompute full --global-batch 64 --sequence-length 4096"},
      {"topology_host", "topology show dgx-1-v100"},
      {"topology_rails", "topology show h100-rail-optimised --hosts 64"},
      {"topology_torus_json", "topology show h100-torus-4x4x4 --hosts 64 --json"},
      {"topology_nvidia_smi",
       "topology import topo.txt --from nvidia-smi --device A100-SXM4-80GB --nic 200Gb/s --out "
       "host.yaml",
       {{"topo.txt", kMatrix}}},
      {"topology_slurm_wrong",
       "topology import topology.conf --from slurm --host dgx-h100",
       {{"topology.conf", kWrongSlurm}}},
      {"list_models", "list models"},
      {"list_tunings", "list tunings"},
      {"list_clusters_json", "list clusters --json"},
      {"solve", "solve instance.json --check", {{"instance.json", kInstance}}},
      {"solve_json", "solve instance.json --check --json", {{"instance.json", kInstance}}},
      {"solve_infeasible",
       "solve instance.json",
       {{"instance.json",
         R"({"schema": "orrery.instance/1", "budget_bytes": 3,
 "layers": [{"options": [{"name": "a", "time_ps": 1, "memory_bytes": 5}]}]})"}}},
      {"solve_wrong_instance", "solve instance.json", {{"instance.json", kWrongInstance}}},
      {"solve_wrong_transitions", "solve instance.json", {{"instance.json", kWrongTransitions}}},
      {"import_galvatron",
       "import galvatron galvatron.json --model gpt2 --cluster dgx-a100 --devices 4 --out "
       "plan.json",
       {{"galvatron.json", kGalvatron}}},
      {"import_galvatron_wrong",
       "import galvatron galvatron.json --model gpt2 --cluster dgx-a100 --out plan.json",
       {{"galvatron.json", kWrongGalvatron}}},
      {"import_megatron",
       "import megatron run.sh --model llama-2-70b --cluster dgx-a100 --hosts 4 --out plan.json",
       {{"run.sh", kMegatron}}},
      {"import_megatron_wrong",
       "import megatron run.sh --model llama-2-70b --cluster dgx-a100 --hosts 4 --out plan.json",
       {{"run.sh", kWrongMegatron}}},
      {"import_other", "import deepspeed ds.json --model gpt2 --cluster dgx-a100 --out plan.json"},
      {"simulate_uniform",
       "simulate --model llama-2-7b --cluster dgx-a100 --tp 2 --pp 2 --dp 2 --zero 1 "
       "--global-batch 64 --sequence-length 2048 --json"},
      {"simulate_goodput",
       "simulate --model gpt2 --cluster dgx-a100 --tp 2 --global-batch 8 --sequence-length 256 "
       "--mtbf 50h --checkpoint-time 30s"},
      {"simulate_scenario", kTwoHosts + " --scenario s.yaml", {{"s.yaml", kScenario}}},
      {"simulate_scenario_json",
       "simulate --model gpt2 --cluster dgx-a100 --pp 2 --dp 2 --global-batch 16 --sequence-length "
       "256 --scenario s.yaml --monte-carlo 20 --threads 2 --json",
       {{"s.yaml", kJitter}}},
      {"simulate_scenario_cut_off", kTwoHosts + " --scenario s.yaml", {{"s.yaml", kCut}}},
      {"simulate_link_fails", kTwoHosts + " --scenario s.yaml", {{"s.yaml", kFails}}},
      {"collective_link_fails",
       "collective --cluster dgx-h100 --hosts 2 --bytes 1GiB --scenario s.yaml",
       {{"s.yaml", kFails}}},
      {"simulate_jobs", kTenant + " --scenario s.yaml", {{"s.yaml", kBeside}}},
      {"simulate_jobs_json", kTenant + " --scenario s.yaml --json", {{"s.yaml", kBeside}}},
      {"simulate_jobs_crowded", kTwoHosts + " --scenario s.yaml", {{"s.yaml", kCrowded}}},
      {"simulate_scenario_wrong", kTwoHosts + " --scenario s.yaml", {{"s.yaml", kWrongScenario}}},
      {"simulate_monte_carlo_alone", kTwoHosts + " --monte-carlo 20"},
      {"simulate_monte_carlo_of_nothing",
       kTwoHosts + " --scenario s.yaml --monte-carlo 20",
       {{"s.yaml", kLinks}}},
      {"simulate_scenario_twice_mtbf",
       kTwoHosts + " --scenario s.yaml --mtbf 50h",
       {{"s.yaml", kScenario}}},
      {"simulate_table_with_scenario",
       "simulate --table rows.csv --scenario s.yaml",
       {{"rows.csv", kRows}, {"s.yaml", kLinks}}},
      {"collective_scenario",
       "collective --cluster dgx-h100 --hosts 2 --bytes 1GiB --scenario s.yaml",
       {{"s.yaml", kLinks}}},
      {"collective_scenario_wrong",
       "collective --cluster dgx-h100 --hosts 2 --bytes 1GiB --scenario s.yaml",
       {{"s.yaml", kJitter}}},
      {"simulate_table", "simulate --table rows.csv --threads 2", {{"rows.csv", kRows}}},
      {"simulate_table_with_plan",
       "simulate --table rows.csv --plan plan.json",
       {{"rows.csv", kRows}}},
      {"simulate_text",
       "simulate --model gpt2-xl --cluster dgx-h100 --pp 4 --dp 2 --recompute full --micro-batch 2 "
       "--global-batch 64"},
      {"plan_profile",
       "plan --model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --memory 36GiB "
       "--global-batch 64 --sequence-length 2048 --top 3 --json"},
      {"plan_target",
       "plan --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --target megatron --fix "
       "tp=2,recompute=none --top 2"},
      {"plan_space",
       "plan --model gpt2-xl --cluster dgx-a100 --global-batch 64 --space dp,zero3 --top 2"},
      {"plan_unknown_dimension",
       "plan --model gpt2-xl --cluster dgx-a100 --space dp,zero4 --fix tp=two,microbatch=1"},
      {"plan_unknown_target", "plan --model gpt2-xl --cluster dgx-a100 --target megatorn"},
      {"explain_help", "explain --help"},
      {"collective_help", "collective --help"},
      {"collective_text", "collective --cluster dgx-h100 --hosts 2 --bytes 1GiB"},
      {"collective_json",
       "collective --cluster dgx-a100 --op all_gather --bytes 64MiB --ranks 0-3 --profile "
       "a100-measured --json"},
      {"collective_mixed", "collective --cluster mixed-h100-a100 --ranks 0-7,128-135 --bytes 1GiB"},
      {"collective_large", "collective --cluster dgx-h100 --hosts 1024 --bytes 1GiB"},
      {"collective_wrong_ranks", "collective --cluster dgx-a100 --bytes 64MiB --ranks 0,3-9"},
      {"collective_wrong_algorithm",
       "collective --cluster dgx-a100 --bytes 64MiB --algorithm nvls"},
      {"collective_unknown_profile", "collective --cluster dgx-a100 --bytes 64MiB --profile hoper"},
      {"collective_missing_bytes", "collective --cluster dgx-a100 --op all_reduce"},
      {"explain_missing_plan", "explain --plan nowhere.json"},
      {"calibrate_check",
       "calibrate --check profile.json --model gpt2 --cluster dgx-a100 --dtype bf16 --ranks 2",
       {{"profile.json", kProfile}}},
      {"calibrate_check_json",
       "calibrate --check profile.json --model gpt2 --cluster dgx-a100 --dtype bf16 --ranks 1 "
       "--json",
       {{"profile.json", kProfile}}},
      {"calibrate_neither", "calibrate --ranks 2"},
      {"profile_planted_faults",
       "simulate --model gpt2 --cluster dgx-a100 --profile ./profile.json",
       {{"profile.json", kPlantedProfile}}},
      {"profile_truncated",
       "simulate --model gpt2 --cluster dgx-a100 --profile ./profile.json",
       {{"profile.json", kTruncatedProfile}}},
      {"profile_of_another_device",
       "simulate --model gpt2 --cluster dgx-a100 --profile ./profile.json",
       {{"profile.json", kOtherProfile}}},
  };
}

std::string transcript(const Case& c) {
  const ScratchFolder folder;
  for (const auto& [name, text] : c.files) folder.write(name, text);
  const CliResult r = run_cli(c.arguments, folder.path());
  return "$ orrery " + c.arguments + "\nexit " + std::to_string(r.exit_code) + "\n--- stdout\n" +
         r.out + "--- stderr\n" + r.err;
}

void expect_text(const std::string& name, const std::string& actual) {
  const std::string path =
      std::string(tests::kSourceDir) + "/tests/golden/cli/expected/" + name + ".txt";
  if (std::getenv("ORRERY_UPDATE_GOLDEN")) std::ofstream(path, std::ios::binary) << actual;
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path << " is missing; ORRERY_UPDATE_GOLDEN=1 writes it";
  std::stringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(actual, expected.str());
}

class CommandLine : public testing::TestWithParam<Case> {};

TEST_P(CommandLine, SaysExactlyThis) { expect_text(GetParam().name, transcript(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Golden, CommandLine, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(CommandLine, PlanIsTheSameTwiceAndWithTwoThreads) {
  const ScratchFolder folder;
  const std::string plan =
      "plan --model llama-2-7b --cluster dgx-a100 --memory 36GiB --global-batch 32 "
      "--sequence-length 2048 --json --threads ";
  const CliResult once = run_cli(plan + "1", folder.path()),
                  again = run_cli(plan + "1", folder.path()),
                  two = run_cli(plan + "2", folder.path());
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_EQ(once.out, again.out);
  EXPECT_EQ(once.out, two.out);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(CommandLine, TableGivesTheSameBytesWithAnyThreadsAndCarriesColumnsThrough) {
  const ScratchFolder folder;
  folder.write("rows.csv", kRows);
  const CliResult one = run_cli("simulate --table rows.csv --out one.csv", folder.path());
  EXPECT_EQ(one.exit_code, 1);  // some rows are faulty
  EXPECT_EQ(one.out, "");
  EXPECT_EQ(run_cli("simulate --table rows.csv --out four.csv --threads 4", folder.path()).err,
            one.err);
  const std::string results = read_text(folder.path() / "one.csv");
  EXPECT_EQ(read_text(folder.path() / "four.csv"), results);
  EXPECT_NE(results.find("\"Megatron, 22 billion\""), std::string::npos);
  // Results of results: the columns are made anew, not twice.
  ASSERT_EQ(run_cli("simulate --table one.csv --out again.csv", folder.path()).exit_code, 1);
  const std::string again = read_text(folder.path() / "again.csv");
  EXPECT_EQ(again.substr(0, again.find('\n')), results.substr(0, results.find('\n')));
}

TEST(CommandLine, ARowOfATableIsWhatTheCommandSays) {
  const ScratchFolder folder;
  folder.write("rows.csv", "tp,pp,dp,zero,seq,micro_batch\r\n2,2,2,1,2048,2\r\n");
  const CliResult table =
      run_cli("simulate --table rows.csv --model llama-2-7b --cluster dgx-a100 --global-batch 64",
              folder.path());
  const CliResult flags = run_cli(
      "simulate --model llama-2-7b --cluster dgx-a100 --tp 2 --pp 2 --dp 2 --zero 1 --micro-batch "
      "2 --global-batch 64 --sequence-length 2048 --json",
      folder.path());
  std::smatch step;
  ASSERT_TRUE(std::regex_search(flags.out, step, std::regex(R"("step_time_s": ([0-9.]+))")));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("\r\n2,2,2,1,2048,2," + step[1].str() + ","), std::string::npos)
      << table.out << step[1];
}

/// Of a plan that is a function of the code base, made first; `then` uses plan.json.
std::string explained(const std::string& plan_arguments, const std::string& then) {
  const ScratchFolder folder;
  EXPECT_EQ(run_cli(plan_arguments + " --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli(then, folder.path());
  return "$ orrery " + then + "\nexit " + std::to_string(r.exit_code) + "\n--- stdout\n" + r.out +
         "--- stderr\n" + r.err;
}

struct Explained {
  std::string name, plan, then;
};
void PrintTo(const Explained& e, std::ostream* out) { *out << e.then; }
class Explanations : public testing::TestWithParam<Explained> {};

TEST_P(Explanations, SayExactlyThis) {
  expect_text(GetParam().name, explained(GetParam().plan, GetParam().then));
}

const char* const kUniform =
    "plan --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --global-batch 32 --top 1 "
    "--fix pp=2,tp=2,micro_batch=1,zero=1,recompute=none --target megatron";
INSTANTIATE_TEST_SUITE_P(
    Golden, Explanations,
    testing::Values(Explained{"explain_text", kUniform,
                              "explain --plan plan.json --memory 40GiB --versus tp=8,pp=1"},
                    Explained{"explain_json", kUniform, "explain --plan plan.json --top 2 --json"},
                    Explained{"explain_infeasible", kUniform,
                              "explain --plan plan.json --memory 20GiB --versus tp=1,pp=1,zero=0"},
                    Explained{"explain_wrong_values", kUniform,
                              "explain --plan plan.json --versus tp=3x,ppp=2,dp"}),
    [](const auto& tested) { return tested.param.name; });

TEST(CommandLine, PlansForOtherWorkAreNotHeldAgainstEachOther) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --top 1 --out a.json", folder.path()).exit_code,
      0);
  ASSERT_EQ(run_cli("plan --model gpt2 --cluster dgx-a100 --top 1 --global-batch 32 --out b.json",
                    folder.path())
                .exit_code,
            0);
  const CliResult r = run_cli("explain --plan a.json --versus b.json", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err,
            "error[E0006]: the plans differ in global_batch: 64 and 32; plans are compared for the "
            "same work\n");
}

TEST(CommandLine, PlanForAnotherModelIsRefused) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("simulate --plan plan.json --model gpt2-xl", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("gpt2"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("error[E"), std::string::npos) << r.err;
  EXPECT_EQ(r.out, "");
}

TEST(CommandLine, RanksThatAreNotThePlansAreRefused) {
  const ScratchFolder folder;
  ASSERT_EQ(
      run_cli("plan --model gpt2 --cluster dgx-a100 --out plan.json", folder.path()).exit_code, 0);
  const CliResult r = run_cli("train --plan plan.json --ranks 3", folder.path());
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err,
            "error[E0006]: --ranks 3, but the plan is for 8 ranks; use --ranks 8, or plan again "
            "for 3 devices\n");
}

TEST(CommandLine, CheckAcceptsWhatSolveAndPlanSayAndRefusesOtherNumbers) {
  const ScratchFolder folder;
  folder.write("instance.json", kInstance);
  const std::string solution = run_cli("solve instance.json --json", folder.path()).out;
  folder.write("solution.json", solution);
  const CliResult accepted = run_cli("check solution.json --instance instance.json", folder.path());
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
  EXPECT_EQ(accepted.out,
            "cost    32 ps (32 ps)  ok\nmemory  24 B of 24 B  ok\nbound   32 ps (32 ps) by the "
            "multipliers  ok\n"
            "gap     0.0000 % to this bound  ok\nthe answer holds\n");
  folder.write("solution.json",
               std::regex_replace(solution, std::regex(R"("bound_ps": 32)"), R"("bound_ps": 31)"));
  // weaker, and true
  EXPECT_EQ(run_cli("check solution.json --instance instance.json", folder.path()).exit_code, 0);
  folder.write("solution.json",
               std::regex_replace(solution, std::regex(R"("numerator": 9)"), R"("numerator": 8)"));
  const CliResult refused = run_cli("check solution.json --instance instance.json", folder.path());
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "solution.json: error[E0006]: multiplier 8 / 8 proves 31 ps, not 32\n");

  const CliResult plan =
      run_cli("plan --model gpt2 --cluster dgx-a100 --check --json --out plan.json", folder.path());
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_NE(plan.err.find("the certificate holds"), std::string::npos) << plan.err;
  folder.write("answer.json", plan.out);
  const CliResult checked = run_cli("check answer.json", folder.path());
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_TRUE(std::regex_match(
      checked.out, std::regex("cost    .*  ok\nmemory  .*  ok\nbound   .* by the multipliers  ok\n"
                              "gap     .* % to this bound  ok\nthe answer holds\n")))
      << checked.out;
  folder.write("answer.json", std::regex_replace(plan.out, std::regex(R"("multiplier_bound_ps": )"),
                                                 R"("multiplier_bound_ps": 1)"));
  const CliResult exaggerated = run_cli("check answer.json", folder.path());
  EXPECT_EQ(exaggerated.exit_code, 1);
  EXPECT_NE(exaggerated.out.find("by the multipliers  fault\n"), std::string::npos)
      << exaggerated.out;
  EXPECT_EQ(run_cli("check plan.json", folder.path()).exit_code, 0);
  EXPECT_EQ(run_cli("check plan.json --memory 100MiB", folder.path()).exit_code, 1);
  folder.write("answer.json",
               std::regex_replace(plan.out, std::regex(R"("cost_ps": )"), R"("cost_ps": 1)"));
  EXPECT_EQ(run_cli("check answer.json", folder.path()).exit_code, 1);
}

TEST(CommandLine, AFailedWriteLeavesTheOldFile) {
  const ScratchFolder folder;
  const CliResult r =
      run_cli("plan --model gpt2 --cluster dgx-a100 --out nowhere/plan.json", folder.path());
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "nowhere"));
}

}  // namespace
}  // namespace orrery::golden
