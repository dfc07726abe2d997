/// What people type wrong, one row each. Every row ends with exit code 1, says this, prints nothing
/// on standard output and leaves no file beside those that were there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "command_line_inputs.h"
#include "run_cli.h"

namespace orrery::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Wrong {
  std::string name;
  std::string arguments;
  std::string said;
  std::map<std::string, std::string> files = {};
};
void PrintTo(const Wrong& w, std::ostream* out) { *out << w.arguments; }

const std::string kPlan = "plan --model gpt2-tiny --cluster dgx-1-v100 --global-batch 8 ";
const std::string kSimulate = "simulate --model gpt2-tiny --cluster dgx-1-v100 ";

std::vector<Wrong> words() {
  return {
      {"NoCommand", "", "Commands:"},
      {"SlipInACommand", "plna", "unknown command 'plna'; did you mean 'plan'?"},
      {"OptionInPlaceOfACommand", "--model gpt2", "unknown command '--model'"},
      {"HelpForNothing", "help palns", "unknown command 'palns'"},
      {"SlipInAnOption", kPlan + "--memroy 8GiB", "did you mean '--memory'?"},
      {"ShortOption", kPlan + "-m 8GiB", "unknown option '-m' of 'plan'"},
      {"OptionWithoutAValue", kPlan + "--memory", "option '--memory' needs a value"},
      {"FlagWithAValue", kPlan + "--json=yes", "option '--json' takes no value"},
      {"OptionTwice", kPlan + "--memory 8GiB --memory 9GiB", "option '--memory' is given twice"},
      {"ArgumentTooMany", kPlan + "now", "unexpected argument 'now' of 'plan'"},
      {"ArgumentTooFew", "solve", "'solve' needs FILE"},
      {"NothingNamed", "plan", "option '--model' of 'plan' is required"},
      {"NoCluster", "plan --model gpt2-tiny",
       "on which cluster?; --cluster NAME, or --gpus 64xH100"},
      {"UnknownList", "list model", "unknown WHAT 'model'; did you mean 'models'?"},
      {"UnknownShell", "completions tcsh", "unknown WHAT 'tcsh'; values: bash, zsh, fish, man"},
      {"UnknownAction", "topology shwo dgx-a100", "unknown ACTION 'shwo'; did you mean 'show'?"},
      {"EmptyModel", "plan --model '' --cluster dgx-a100", "no model '' in the catalog"},
      {"NotUtf8", "list \"$(printf 'mod\\377els')\"", "unknown WHAT"},
  };
}

std::vector<Wrong> numbers() {
  return {
      {"NoUnit", kPlan + "--memory 36", "'36' has no unit"},
      {"UnitOfAnotherKind", kPlan + "--memory 36s", "'s' is not a unit of size in '36s'"},
      {"NegativeSize", kPlan + "--memory -5GiB", "size '-5GiB' is negative"},
      {"TooLargeForANumber", kPlan + "--memory 1e400GiB", "is not a size"},
      {"NotANumber", kPlan + "--memory nanGiB", "is not a size"},
      {"ZeroBatch", kPlan.substr(0, kPlan.size() - 2) + "0", "option '--global-batch': 0 is less"},
      {"FractionOfHosts", kPlan + "--hosts 1.5", "option '--hosts': expected an integer"},
      {"TooManyHosts", kPlan + "--hosts 99999999", "99999999 is more than 1048576"},
      {"BeyondTheIntegers", kPlan + "--hosts 99999999999999999999", "expected an integer"},
      {"HexadecimalIsNoNumber", kPlan + "--hosts 0x2", "expected an integer, found '0x2'"},
      {"SpaceInANumber", kPlan + "--hosts ' 2'", "expected an integer, found ' 2'"},
      {"SequenceTooLong", kPlan + "--sequence-length 4096", "sequence is 4096 tokens"},
      {"UnknownPrecision", kPlan + "--precision bf61", "did you mean 'bf16'?"},
      {"UnknownSoftware", kPlan + "--software megatorn", "no software 'megatorn'; software: "},
      {"UnknownProfile", kPlan + "--profile hoper", "no profile 'hoper'; profiles: "},
      {"ProfileAndSoftware", kPlan + "--profile a100-measured --software megatron-core",
       "--profile and software 'megatron-core' do not go together"},
      {"SparesWithoutRepairs", kPlan + "--tokens 1B --mtbf 500h --spares 1",
       "--spares says something about --repair-time, which is missing"},
      {"SettingWithoutAValue", kPlan + "--set nvlink.bandwidth", "sets nothing"},
      {"SettingOfNothing", kPlan + "--set nvlink.bandwith=2x", "did you mean 'bandwidth'?"},
      {"SettingBelowZero", kPlan + "--set nvlink.bandwidth=-2x", "a factor is above zero"},
      {"UnknownDimension", kPlan + "--space dp,zero4", "unknown dimension 'zero4'"},
      {"UnknownKeyToFix", kPlan + "--fix tpp=2", "unknown key 'tpp'; did you mean 'tp'?"},
      {"WordInPlaceOfADegree", kPlan + "--fix tp=two", "tp is a whole number from 1 on"},
      {"UnknownTarget", kPlan + "--target megatorn", "did you mean 'megatron'?"},
  };
}

std::vector<Wrong> machines() {
  return {
      {"SlipInAModel", "plan --model lama-2-7b --cluster dgx-a100", "did you mean 'llama-2-7b'?"},
      {"SlipInACluster", "plan --model gpt2 --cluster dgx-a10", "did you mean 'dgx-a100'?"},
      {"GpusThatDoNotFillHosts", "plan --model gpt2 --gpus 60xH100", "56xH100 or 64xH100"},
      {"GpusWithoutANumber", "plan --model gpt2 --gpus H100", "'H100' is no number of devices"},
      {"GpusThatNobodyHas", "plan --model gpt2 --gpus 8xH101", "no host of the catalog has"},
      {"GpusOfSeveralHosts", "plan --model gpt2 --gpus 16xV100", "dgx-1-v100, dgx-2-v100"},
      {"GpusAndACluster", kPlan + "--gpus 8xH100", "--gpus and --cluster do not go together"},
      {"HostsOfATorus", "plan --model gpt2 --cluster h100-torus-4x4x4 --hosts 8",
       "has 64 hosts, not 8; leave --hosts out"},
      {"OneHostOfATorus", "topology show h100-torus-4x4x4 --hosts 1",
       "has 64 hosts, not 1; leave --hosts out"},
      {"HostsOfAMixedCluster", "topology show mixed-h100-a100 --hosts 4", "has 32 hosts, not 4"},
      {"DegreeThatDoesNotDivide", kSimulate + "--tp 3", "does not divide the cluster's 8 devices"},
      {"MoreRanksThanDevices", kSimulate + "--dp 64", "--hosts 8 would do"},
      {"MoreStagesThanLayers", kSimulate + "--pp 8", "8 stages for"},
      {"ExpertsOfADenseModel", kSimulate + "--ep 4", "has no experts"},
      {"RanksThatAreNone", "collective --cluster dgx-a100 --bytes 1MiB --ranks 0,3-9",
       "names no group of devices"},
      {"DevicesThatAreNoPower", "partition --model gpt2 --cluster dgx-1-v100 --devices 6",
       "6 devices are no power of two"},
      {"NothingToVary", "sweep --model gpt2 --cluster dgx-a100", "option '--vary' of 'sweep'"},
      {"AxisThatIsNone", "sweep --model gpt2 --cluster dgx-a100 --vary hots=1,2",
       "did you mean 'hosts'?"},
  };
}

std::string of_batch(int sequences) {
  std::string plan = kShardedPlan;
  const std::string stated = "\"global_batch\": 64";
  return plan.replace(plan.find(stated), stated.size(),
                      "\"global_batch\": " + std::to_string(sequences));
}

std::vector<Wrong> plans_to_validate() {
  return {{"PlansToValidateAndTheirNumber",
           "validate --model llama-2-7b --plan p.json --plans 3",
           "--plans is said by the files of --plan; leave it out",
           {{"p.json", kShardedPlan}}},
          {"PlanToValidateOfOtherRanks",
           "validate --model llama-2-7b --plan p.json",
           "p.json is of 8 ranks, not 2",
           {{"p.json", kShardedPlan}}},
          {"PlanToValidateOfAnotherPrecision",
           "validate --model llama-2-7b --ranks 8 --plan p.json",
           "p.json is of bf16 precision, not fp32",
           {{"p.json", kShardedPlan}}},
          {"PlansToValidateOfOtherBatches",
           "validate --model llama-2-7b --ranks 8 --precision bf16 --plan p.json --plan q.json",
           "q.json is of 128 sequences a step, not 64",
           {{"p.json", kShardedPlan}, {"q.json", of_batch(128)}}},
          {"PlanToValidateOfAnotherModel",
           "validate --model gpt2-tiny --ranks 8 --precision bf16 --oversubscribe --plan p.json",
           "the plan was made for model 'llama-2-7b'",
           {{"p.json", kShardedPlan}}}};
}

std::vector<Wrong> files() {
  return {
      {"MissingPlan", "simulate --plan nowhere.json", "cannot read 'nowhere.json': No such file"},
      {"FolderAsAPlan", "simulate --plan .", "cannot read '.': Is a directory"},
      {"EmptyPlan",
       "simulate --plan empty.json",
       "empty.json:1:1: error[E0001]",
       {{"empty.json", ""}}},
      {"CutPlan", "simulate --plan cut.json", "cut.json:2:1: error[E0001]", {{"cut.json", "{\n"}}},
      {"PlanOfAnotherSchema",
       "simulate --plan other.json",
       "orrery.plan/1",
       {{"other.json", R"({"schema": "orrery.plan/9"})"}}},
      {"ModelThatIsNoModel",
       "plan --model ./config.json --cluster dgx-a100",
       "config.json",
       {{"config.json", "[1, 2]"}}},
      {"ModelOfAnUnknownFamily",
       "plan --model ./config.json --cluster dgx-a100",
       "mamba",
       {{"config.json", R"({"model_type": "mamba"})"}}},
      {"ClusterWithAnUnknownKey",
       "topology show ./c.yaml",
       "c.yaml:2:1: error[E0002]",
       {{"c.yaml", "schema: orrery.topology/1\nnmae: x\n"}}},
      {"BinaryFile",
       "simulate --plan noise.json",
       "noise.json:1:1: error[E0001]",
       {{"noise.json", std::string("\x7f\x45\x4c\x46\x00\x01", 6)}}},
      {"OutputIsAFolder",
       kPlan + "--out there",
       "cannot write 'there': Is a directory",
       {{"there/inside", ""}}},
      {"OutputEndsInASlash",
       kPlan + "--out there/",
       "cannot write 'there/': Is a directory",
       {{"there/inside", ""}}},
      {"OutputInNoFolder", kPlan + "--out no/plan.json", "cannot write 'no/plan.json': No such"},
      {"OutputBelowAFile",
       kPlan + "--out file/plan.json",
       "cannot write 'file/plan.json': Not a",
       {{"file", ""}}},
      {"TraceInNoFolder", kSimulate + "--trace no/step.json", "cannot write 'no/step.json'"},
      {"PageInNoFolder", kSimulate + "--html no/step.html", "cannot write 'no/step.html'"},
      {"TableThatIsMissing", "simulate --table rows.csv", "cannot read 'rows.csv'"},
      {"PlanAndATable",
       "simulate --table rows.csv --plan plan.json",
       "do not go together",
       {{"rows.csv", "tp\n1\n"}}},
      {"ProfileThatIsCut", kPlan + "--profile ./p.json", "p.json:1:", {{"p.json", "{\"schema\":"}}},
  };
}

std::vector<Wrong> rows() {
  std::vector<Wrong> all = words();
  for (const auto& group : {numbers(), machines(), files(), plans_to_validate()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

std::vector<std::string> names_below(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), folder).string());
  return names;
}

class WrongInput : public testing::TestWithParam<Wrong> {};

TEST_P(WrongInput, IsSaidWithExitCodeOneAndLeavesNothing) {
  const Wrong& w = GetParam();
  const ScratchFolder folder;
  std::vector<std::string> given;
  for (const auto& [name, text] : w.files) {
    fs::create_directories((folder.path() / name).parent_path());
    folder.write(name, text);
    given.push_back(name);
  }
  const CliResult r = run_cli(w.arguments, folder.path());
  EXPECT_EQ(r.exit_code, 1) << r.out << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr(w.said));
  EXPECT_THAT(names_below(folder.path()), testing::UnorderedElementsAreArray(given));
}

INSTANTIATE_TEST_SUITE_P(Golden, WrongInput, testing::ValuesIn(rows()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace orrery::golden
