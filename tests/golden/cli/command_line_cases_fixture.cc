#include "command_line_cases.h"

#include "command_line_inputs.h"

namespace orrery::golden {
namespace {

const std::string kTwoHosts =
    "simulate --model llama-2-7b --cluster dgx-a100 --hosts 2 --tp 2 --pp 2 --zero 1 "
    "--global-batch 64 --sequence-length 2048";

const std::string kTenant =
    "simulate --model llama-2-7b --cluster a100-leaf-spine-4to1 --hosts 8 --tp 8 --dp 4 --zero 3 "
    "--global-batch 32 --sequence-length 2048";

std::vector<Case> wrong_arguments() {
  return {
      {"help", "--help"},
      {"plan_help", "plan --help"},
      {"unknown_command", "simulat"},
      {"unknown_option", "simulate --modle gpt2 --cluster dgx-a100"},
      {"unknown_model", "simulate --model lama-2-7b --cluster dgx-a100"},
      {"unknown_cluster", "simulate --model gpt2 --cluster dgx-a10"},
      {"unknown_key", "simulate --model gpt2 --cluster bad.yaml", {{"bad.yaml", kCluster}}},
      {"set_unknown_part",
       "simulate --model gpt2 --cluster dgx-a100 --set ib.bandwith=2x,ethernet.latency=1us"},
      {"set_of_measured_times",
       "plan --model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --set "
       "device.peak_bf16=2x"},
      {"missing_unit", "plan --model gpt2 --cluster dgx-a100 --memory 36"},
      {"tp_does_not_divide_heads", "simulate --model gpt2 --cluster dgx-a100 --tp 8"},
      {"interleaved_micro_batches",
       "simulate --model gpt2 --cluster dgx-a100 --pp 4 --schedule interleaved --virtual-stages 3 "
       "--global-batch 12"},
      {"zero_devices", "simulate --model gpt2 --cluster dgx-a100 --tp 0"},
      {"zero_hosts", "simulate --model gpt2 --cluster dgx-a100 --hosts 0"},
      {"too_many_ranks", "simulate --model llama-2-7b --cluster dgx-a100 --tp 8 --dp 4"},
      {"step_of_years",
       "simulate --model llama-3-405b --cluster dgx-1-v100 --tp 8 --global-batch 6000 "
       "--micro-batch 6000"},
      {"truncated_json", "simulate --plan plan.json", {{"plan.json", kPlan}}},
      {"missing_file", "simulate --plan nowhere.json"},
      {"replay_help", "replay --help"},
      {"replay_unknown_rank", "replay --plan plan.json --rank 8", {{"plan.json", kUnevenPlan}}},
      {"unreadable_file", "simulate --plan ."},
      {"infeasible",
       "plan --model llama-2-7b --cluster dgx-a100 --memory 4GiB --global-batch 64 "
       "--sequence-length 2048"},
      {"infeasible_gpipe",  // of the fewest micro-batches alone plans fit twice the devices
       "plan --model llama-2-13b --cluster dgx-a100 --memory 24GiB --space "
       "dp,tp,pp,zero3,recompute --global-batch 64 --sequence-length 4096 --fix schedule=gpipe"},
      {"nothing_divides",
       "plan --model gpt2-xl --cluster dgx-a100 --hosts 8 --global-batch 1 --space "
       "dp,zero1,zero3,tp,sp,pp,recompute"},
      {"infeasible_simulation",
       "simulate --model llama-2-7b --cluster dgx-a100 --dp 8 --memory 40GiB --sequence-length "
       "2048"},
  };
}

std::vector<Case> sweeps() {
  return {
      {"sweep_help", "sweep --help"},
      {"sweep_of_nothing",
       "sweep --model gpt2 --cluster dgx-a100 --vary host=1,2 --vary hosts=2..1 --vary threads=2"},
      {"sweep_twice_the_network",
       "sweep --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --vary hosts=1..4 "
       "--vary "
       "ib.bandwidth=0.25x,1x --threads 2"},
      {"sweep_smallest",
       "sweep --model llama-2-7b --cluster dgx-a100 --sequence-length 4096 --global-batch 64 "
       "--vary "
       "hosts=1..8:1 --tokens 100B --deadline 30d --price-per-gpu-hour 1.5$ --smallest --threads "
       "2"},
      {"sweep_out_of_time",
       "sweep --model llama-2-7b --cluster dgx-a100 --sequence-length 4096 --global-batch 64 "
       "--vary "
       "hosts=1,2 --tokens 1T --deadline 10d"},
      {"sweep_smallest_of_nothing",
       "sweep --model llama-2-7b --cluster dgx-a100 --vary hosts=1,2 --tokens 1T --smallest"},
      {"sweep_with_faults",
       "sweep --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --vary "
       "memory=4GiB,40GiB,lots"},
      {"sweep_of_a_held_plan_that_states_the_batch",
       "sweep --plan plan.json --global-batch 8 --vary nvlink.bandwidth=0.5x,2x",
       {{"plan.json", kPlan}}},
  };
}

std::vector<Case> experts_and_topologies() {
  return {
      {"more_choices_than_experts",
       "simulate --model ./mixture.json --cluster dgx-a100",
       {{"mixture.json", kMixture}}},
      {"ep_does_not_divide_experts",
       "simulate --model qwen1.5-moe-a2.7b --cluster dgx-h100 --ep 8"},
      {"experts_of_a_dense_model", "simulate --model llama-2-7b --cluster dgx-h100 --ep 8"},
      {"simulate_experts",
       "simulate --model mixtral-8x7b --cluster dgx-h100 --hosts 2 --tp 2 --ep 8 --zero 1 "
       "--recompute full --global-batch 64 --sequence-length 4096"},
      {"completions_bash", "completions bash"},
      {"completions_zsh", "completions zsh"},
      {"completions_fish", "completions fish"},
      {"completions_man", "completions man"},
      {"doctor_help", "doctor --help"},
      {"plan_gpus",
       "plan --model ./config.json --gpus 16xH100 --global-batch 32",
       {{"config.json", kMixtureThatFits}}},
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
      {"list_software", "list software"},
      {"list_tunings", "list tunings"},
      {"list_precisions", "list precisions"},
      {"list_clusters_json", "list clusters --json"},
  };
}

std::vector<Case> instances_and_imports() {
  return {
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
      {"partition",
       "partition --model llama-2-7b --cluster dgx-1-v100 --hosts 2 --precision fp32 "
       "--sequence-length 2048 --devices 16 --micro-batch 4 --layers 32 --skew"},
      {"partition_json",
       "partition --model gpt2 --cluster dgx-1-v100 --precision fp32 --devices 4 --micro-batch 4 "
       "--memory-weight 0.5 --fix 'mlp in=P2x2;mlp out=P2x2' --json"},
      {"plan_spatial_temporal",
       "plan --model llama-2-7b --cluster rtx-titan-pcie --hosts 2 --global-batch 16 "
       "--sequence-length 512 --precision fp32 --space tp,sp,spatial-temporal --check"},
      {"plan_spatial_temporal_alone",
       "plan --model llama-2-7b --cluster dgx-a100 --global-batch 4 --space spatial-temporal"},
      {"partition_wrong_devices", "partition --model gpt2 --cluster dgx-1-v100 --devices 6"},
      {"partition_wrong_fix",
       "partition --model gpt2 --cluster dgx-1-v100 --devices 4 --fix 'mlp in=P3x3'"},
      {"partition_unsplit",
       "partition --model gpt2 --cluster dgx-1-v100 --devices 4 --fix 'mlp in=H,K'"},
      {"partition_experts", "partition --model mixtral-8x7b --cluster dgx-h100 --devices 4"},
  };
}

std::vector<Case> exports() {
  const auto export_of = [](const char* name, const char* options, const char* plan) {
    return Case{
        name, std::string("export --plan plan.json --to ") + options, {{"plan.json", plan}}};
  };
  return {
      export_of("export_megatron", "megatron", kUnevenPlan),
      export_of("export_megatron_json", "megatron --out plan.sh --json", kUnevenPlan),
      export_of("export_torchtitan", "torchtitan", kUnevenPlan),
      export_of("export_deepspeed", "deepspeed", kUnevenPlan),
      export_of("export_accelerate", "accelerate --out fsdp.yaml", kUnevenPlan),
      export_of("export_galvatron", "galvatron --memory 24GiB --out plan24.json", kUnevenPlan),
      export_of("export_deepspeed_exact", "deepspeed --out ds.json", kShardedPlan),
      export_of("export_refused", "megatron", kEncoderPlan),
      export_of("export_wrong_framework", "megatro", kUnevenPlan),
      {"import_torchtitan",
       "import torchtitan job.toml --model llama-3-8b --cluster dgx-h100 --hosts 2 --out plan.json",
       {{"job.toml", kTorchTitan}}},
      {"import_torchtitan_wrong",
       "import torchtitan job.toml --model llama-3-8b --cluster dgx-h100 --out plan.json",
       {{"job.toml", kWrongTorchTitan}}},
      {"import_deepspeed",
       "import deepspeed ds.json --model llama-2-7b --cluster dgx-a100 --recompute "
       "--sequence-length 2048 --out plan.json",
       {{"ds.json", kDeepSpeed}}},
      {"import_accelerate",
       "import accelerate fsdp.yaml --model llama-2-7b --cluster dgx-a100 --micro-batch 2 "
       "--micro-batches 4 --sequence-length 2048 --out plan.json",
       {{"fsdp.yaml", kAccelerate}}},
      {"import_beside",
       "import megatron run.sh --model llama-2-7b --cluster dgx-a100 --pp 2 --out plan.json"},
      {"import_other", "import colossal cai.json --model gpt2 --cluster dgx-a100 --out plan.json"},
  };
}

std::vector<Case> simulations() {
  return {
      {"simulate_uniform",
       "simulate --model llama-2-7b --cluster dgx-a100 --tp 2 --pp 2 --dp 2 --zero 1 "
       "--global-batch 64 --sequence-length 2048 --json"},
      {"plan_offload",
       "plan --model llama-3.1-8b --cluster dgx-h100 --memory 40GiB --global-batch 72 "
       "--sequence-length 32768 --space usual,offload --set pcie.bandwidth=4x --max-states 200000 "
       "--check"},
      {"simulate_offload",
       "simulate --model llama-2-7b --cluster dgx-h100 --dp 8 --zero 3 --micro-batch 2 "
       "--global-batch 64 --sequence-length 4096 --recompute offload"},
      {"simulate_states_on_the_host",
       "simulate --model llama-2-7b --cluster dgx-h100 --dp 8 --zero 1 --micro-batch 1 "
       "--global-batch 64 --sequence-length 4096 --recompute selective --states host"},
      {"simulate_offload_without_a_host",
       "simulate --model llama-2-7b --cluster tpu-v6e-16x16 --dp 256 --recompute offload "
       "--global-batch 256"},
      {"simulate_fp8",
       "simulate --model llama-2-7b --cluster dgx-h100 --dp 8 --zero 1 --global-batch 128 "
       "--sequence-length 4096 --precision fp8-delayed"},
      {"simulate_fp8_on_ampere",
       "simulate --model llama-2-7b --cluster dgx-a100 --dp 8 --precision fp8-current"},
      {"simulate_mxfp8_on_hopper",
       "simulate --model llama-2-7b --cluster dgx-h100 --dp 8 --precision mxfp8"},
      {"simulate_energy", kTwoHosts + " --energy --pue 1.2"},
      {"simulate_energy_json", kTwoHosts + " --energy --json"},
      {"simulate_run",
       kTwoHosts + " --tokens 300B --price-per-gpu-hour 2.1$ --pue 1.1 --carbon 400 --mtbf 50000h "
                   "--deadline 60d --budget 100K$"},
      {"simulate_run_spares",
       kTwoHosts +
           " --tokens 300B --price-per-gpu-hour 2.1$ --mtbf 500h --repair-time 24h --spares "
           "1"},
      {"simulate_run_scenario",
       kTwoHosts + " --scenario s.yaml --energy --tokens 1B",
       {{"s.yaml", kScenario}}},
      {"simulate_run_without_tokens", kTwoHosts + " --deadline 60d --budget 5M$"},
      {"simulate_run_wrong_units", kTwoHosts + " --tokens 15G --price-per-gpu-hour 2.1"},
      {"simulate_energy_unknown",
       "simulate --model gpt2 --cluster dgx-2-v100 --dp 16 --global-batch 16 --energy"},
      {"simulate_run_power_unknown",
       "simulate --model gpt2 --cluster dgx-2-v100 --dp 16 --global-batch 16 --tokens 10B"},
      {"plan_run",
       "plan --model llama-2-7b --cluster dgx-a100 --global-batch 64 --sequence-length 2048 "
       "--tokens 2T --price-per-gpu-hour 2$ --budget 1M$ --deadline 10d --energy"},
      {"plan_run_json",
       "plan --model llama-2-7b --cluster dgx-a100 --global-batch 64 --sequence-length 2048 "
       "--tokens 100B --price-per-gpu-hour 2$ --mtbf 50000h --json"},
      {"simulate_goodput",
       "simulate --model gpt2 --cluster dgx-a100 --tp 2 --global-batch 8 --sequence-length 256 "
       "--mtbf 50h --checkpoint-time 30s"},
  };
}

std::vector<Case> objectives() {
  return {
      {"plan_minimise_energy",
       "plan --model llama-2-7b --cluster dgx-h100 --hosts 3 --global-batch 48 --sequence-length "
       "4096 --minimise energy --top 2 --check"},
      {"plan_minimise_energy_json",
       "plan --model llama-2-7b --cluster dgx-a100 --hosts 2 --global-batch 16 --sequence-length "
       "2048 --fix pp=1 --minimise energy --json"},
      {"plan_minimise_money",
       "plan --model llama-2-7b --cluster dgx-h100 --hosts 8 --global-batch 64 --sequence-length "
       "4096 --minimise money --tokens 100B --price-per-gpu-hour 2$ --deadline 10d"},
      {"plan_minimise_late",
       "plan --model llama-2-7b --cluster dgx-h100 --hosts 2 --global-batch 64 --sequence-length "
       "4096 --minimise money --tokens 10T --deadline 10d"},
      {"plan_minimise_unpowered", "plan --model gpt2-xl --cluster dgx-2-v100 --minimise energy"},
      {"sweep_minimise",
       "sweep --model llama-2-7b --hosts 4 --sequence-length 4096 --global-batch 64 --vary "
       "cluster=dgx-a100,dgx-h100 --minimise energy --tokens 100B --deadline 40d --threads 2"},
  };
}

std::vector<Case> scenarios() {
  return {
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
  };
}

std::vector<Case> tables() {
  return {
      {"simulate_table", "simulate --table rows.csv --threads 2", {{"rows.csv", kRows}}},
      {"simulate_table_with_plan",
       "simulate --table rows.csv --plan plan.json",
       {{"rows.csv", kRows}}},
      {"simulate_text",
       "simulate --model gpt2-xl --cluster dgx-h100 --pp 4 --dp 2 --recompute full --micro-batch 2 "
       "--global-batch 64"},
  };
}

std::vector<Case> plans() {
  return {
      {"plan_profile",
       "plan --model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --memory 36GiB "
       "--global-batch 64 --sequence-length 2048 --top 3 --json"},
      {"plan_adapters",
       "plan --model llama-3-70b --cluster dgx-h100 --global-batch 32 --sequence-length 4096 "
       "--lora-rank 16 --check"},
      {"adapters_of_experts",
       "simulate --model mixtral-8x7b --cluster dgx-h100 --lora-rank 8 --lora-targets mlp"},
      {"adapters_unknown_target",
       "simulate --model gpt2 --cluster dgx-h100 --lora-rank 8 --lora-targets q_proj"},
      {"plan_target",
       "plan --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --target megatron --fix "
       "tp=2,recompute=none --top 2"},
      {"plan_space",
       "plan --model gpt2-xl --cluster dgx-a100 --global-batch 64 --space dp,zero3 --top 2"},
      {"plan_unknown_dimension",
       "plan --model gpt2-xl --cluster dgx-a100 --space dp,zero4 --fix tp=two,microbatch=1"},
      {"plan_software",
       "plan --model llama-2-7b --cluster dgx-h100 --global-batch 16 --software pytorch-eager "
       "--fix "
       "tp=1,pp=1,zero=3"},
      {"plan_unknown_software",
       "plan --model gpt2-xl --cluster dgx-h100 --global-batch 16 --software pytorch"},
      {"plan_target_software",
       "plan --model llama-2-7b --cluster dgx-h100 --global-batch 16 --target torchtitan --fix "
       "tp=2,pp=1,recompute=operator"},
      {"plan_unknown_target", "plan --model gpt2-xl --cluster dgx-a100 --target megatorn"},
      {"explain_help", "explain --help"},
  };
}

std::vector<Case> collectives() {
  return {
      {"collective_help", "collective --help"},
      {"collective_text", "collective --cluster dgx-h100 --hosts 2 --bytes 1GiB"},
      {"collective_json",
       "collective --cluster dgx-a100 --op all_gather --bytes 64MiB --ranks 0-3 --profile "
       "a100-measured --json"},
      {"plan_mixed",
       "plan --model llama-2-7b --cluster mixed-h100-a100 --global-batch 256 --sequence-length "
       "4096 --fix pp=4,tp=2 --space dp,tp,pp --check"},
      {"collective_mixed", "collective --cluster mixed-h100-a100 --ranks 0-7,128-135 --bytes 1GiB"},
      {"collective_large", "collective --cluster dgx-h100 --hosts 1024 --bytes 1GiB"},
      {"collective_wrong_ranks", "collective --cluster dgx-a100 --bytes 64MiB --ranks 0,3-9"},
      {"collective_wrong_algorithm",
       "collective --cluster dgx-a100 --bytes 64MiB --algorithm nvls"},
      {"collective_unknown_profile", "collective --cluster dgx-a100 --bytes 64MiB --profile hoper"},
      {"collective_missing_bytes", "collective --cluster dgx-a100 --op all_reduce"},
      {"explain_missing_plan", "explain --plan nowhere.json"},
  };
}

std::vector<Case> profiles() {
  return {
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

}  // namespace

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& group :
       {wrong_arguments(), sweeps(), experts_and_topologies(), instances_and_imports(), exports(),
        simulations(), objectives(), scenarios(), tables(), plans(), collectives(), profiles()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace orrery::golden
