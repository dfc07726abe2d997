/// Machines and surroundings that are broken, one row each: full disks, closed pipes, missing
/// homes, folders that refuse, libraries and data that are gone. A row is a shell script in a
/// folder of its own; it must end with this exit code, say this, and leave no temporary file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "run_cli.h"
#include "tests/support/paths.h"

namespace orrery::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Broken {
  std::string name;
  std::string script;  // $ORRERY is the program
  int exit_code;
  std::string said;            // in stdout or stderr
  bool as_other_user = false;  // root may write anywhere: the script runs as nobody
};
void PrintTo(const Broken& b, std::ostream* out) { *out << b.script; }

/// Plans in a blink.
const std::string kPlan =
    "\"$ORRERY\" plan --model gpt2-tiny --cluster dgx-1-v100 --global-batch 8";
const std::string kLocal =
    "\"$ORRERY\" plan --model gpt2-tiny --cluster local --global-batch 8 --memory 1GiB";
const std::string kHomeless = "unset HOME XDG_CACHE_HOME; ";

std::vector<Broken> outputs() {
  return {
      {"FullStandardOutput", "\"$ORRERY\" list models >/dev/full", 3,
       "cannot write standard output: No space left on device"},
      {"FullStandardOutputOfADocument", kPlan + " --json >/dev/full", 3,
       "cannot write standard output: No space left on device"},
      {"FullDevice", kPlan + " --out /dev/full", 3,
       "cannot write '/dev/full': No space left on device"},
      {"FullDiskForAFile",
       "exec 3>&2; code=$( (ulimit -f 0; " + kPlan +
           " --out plan.json 2>&1 >/dev/null; echo \"code $?\") | tee /dev/fd/3 | sed -n 's/^code "
           "//p'); test ! -e plan.json && exit $code",
       3, "cannot write 'plan.json': File too large"},
      {"FullDiskKeepsTheOldFile",
       "echo old >plan.json; (ulimit -f 0; " + kPlan +
           " --out plan.json 2>/dev/null >/dev/null); cat plan.json",
       0, "old"},
      {"ClosedStandardOutput", "\"$ORRERY\" list models >&-", 3,
       "cannot write standard output: Bad file descriptor"},
      {"ClosedStandardOutputStaysOutOfTheFile",
       kPlan + " --out plan.json >&-; grep -c 'step time' plan.json; test -s plan.json", 0, "0"},
      {"ClosedStandardError", "\"$ORRERY\" plan --model nothing --cluster dgx-a100 2>&-", 1, ""},
      {"ClosedStandardInput", "\"$ORRERY\" list precisions <&-", 0, "bf16"},
      {"ClosedPipe", "{ sleep 0.3; \"$ORRERY\" list models; echo \"code $?\" >&2; } | true", 0,
       "code 141"},
      {"StandardOutputAsAFile", kPlan + " --out /dev/stdout", 0, "\"schema\": \"orrery.plan/1\""},
      {"NullDeviceStaysADevice", kPlan + " --out /dev/null && test -c /dev/null && echo stays", 0,
       "stays"},
      {"LinkAsAFileStaysALink",
       "ln -s real.json link.json; : >real.json; " + kPlan +
           " --out link.json >/dev/null 2>&1; test -L link.json && cat real.json",
       0, "orrery.plan/1"},
      {"EndedInTheMiddle",
       "\"$ORRERY\" sweep --model llama-3-405b --cluster dgx-h100 --vary hosts=64..512:8 "
       "--global-batch 4096 --threads 1 --out s.csv >/dev/null 2>&1 & sleep 0.2; kill $!; wait $!; "
       "code=$?; test ! -e s.csv && exit $code",
       143, ""},
  };
}

std::vector<Broken> surroundings() {
  return {
      {"NoHome", kHomeless + kLocal, 0, "step time"},
      {"NoHomeToCalibrateInto",
       kHomeless + "\"$ORRERY\" validate --model gpt2-tiny --ranks 1 --global-batch 4", 3,
       "neither HOME nor XDG_CACHE_HOME says where calibrations lie"},
      {"CacheThatIsAFile",
       ": >cache; XDG_CACHE_HOME=cache \"$ORRERY\" validate --model gpt2-tiny --ranks 1 "
       "--global-batch 4",
       3, "cannot create cache/orrery/profiles: Not a directory"},
      {"CalibrationOfAnotherMachine",
       "mkdir -p cache/orrery/profiles; for n in $(seq 1 512); do echo '{\"schema\": "
       "\"orrery.profile/1\", \"name\": \"x\", \"provenance\": {\"source\": \"orrery calibrate\", "
       "\"machine\": \"an abacus, 1 cores, 1 ranks measuring at once\"}}' "
       ">cache/orrery/profiles/local-$n-ranks-bf16.json; done; XDG_CACHE_HOME=cache " +
           kLocal,
       0, "is left out: it is of another machine (an abacus"},
      {"CalibrationThatIsCut",
       "mkdir -p cache/orrery/profiles; for n in $(seq 1 512); do echo '{' "
       ">cache/orrery/profiles/local-$n-ranks-bf16.json; done; XDG_CACHE_HOME=cache " +
           kLocal,
       0, "is left out: cache/orrery/profiles/local-"},
      {"FolderThatRefuses", kPlan + " --out plan.json", 3,
       "cannot write 'plan.json': Permission denied", true},
      {"FileThatRefuses", "\"$ORRERY\" plan --model ./secret.json --cluster dgx-a100", 1,
       "cannot read './secret.json': Permission denied", true},
      {"FolderThatIsGone", "mkdir gone; cd gone; rmdir ../gone; \"$ORRERY\" list precisions", 0,
       "bf16"},
      {"TemporaryFolderThatIsGone", "TMPDIR=/nowhere \"$ORRERY\" doctor", 3,
       "name another in TMPDIR"},
      {"TooLittleMemory", "ulimit -v 200000; \"$ORRERY\" topology show dgx-h100 --hosts 1048576", 3,
       "too little memory"},
      {"EndlessFile", "\"$ORRERY\" plan --model /dev/zero --cluster dgx-a100", 1,
       "cannot read '/dev/zero': File too large"},
  };
}

std::vector<Broken> installations() {
  return {
      {"ExecutorThatLacksALibrary",
       "cp \"$ORRERY\" orrery; sed 's/libstdc++\\.so\\.6/libstdc++.so.0/g' \"$ORRERY\" "
       ">orrery-executor; chmod +x orrery-executor; ./orrery train --plan plan.json",
       3, "cannot load libstdc++.so.0; they lie in a folder that is gone"},
      {"ExecutorThatLacksALibraryInTheEyesOfTheDoctor",
       "cp \"$ORRERY\" orrery; sed 's/libstdc++\\.so\\.6/libstdc++.so.0/g' \"$ORRERY\" "
       ">orrery-executor; chmod +x orrery-executor; ./orrery doctor",
       3, "problem  LibTorch          cannot load libstdc++.so.0"},
      {"ExecutorThatIsNoProgram",
       "cp \"$ORRERY\" orrery; : >orrery-executor; ./orrery train --plan plan.json", 3,
       "orrery-executor: Permission denied; build or install Orrery again"},
      {"DataThatAreGone", "./moved list models", 3, "the data of Orrery are missing: no file in"},
      {"DataThatAreGoneInTheEyesOfTheDoctor", "./moved doctor", 3, "problem  data"},
      {"DataFolderThatIsNone", "ORRERY_DATA=nowhere \"$ORRERY\" list models", 1,
       "ORRERY_DATA is 'nowhere', which is no folder"},
      {"ModelOfTheCatalogThatIsBroken",
       "mkdir -p data/model/catalog; echo '{' >data/model/catalog/gpt2-tiny.json; "
       "ORRERY_DATA=data " +
           kPlan,
       1, "data/model/catalog/gpt2-tiny.json:2:1: error[E0001]"},
      {"ClusterOfTheCatalogThatIsBroken",
       "mkdir -p data/topologies/catalog; echo 'name: [' >data/topologies/catalog/mine.yaml; "
       "ORRERY_DATA=data \"$ORRERY\" list clusters",
       0, "cannot be read: data/topologies/catalog/mine.yaml"},
      {"BrokenCatalogInTheEyesOfTheDoctor",
       "mkdir -p data/topologies/catalog; echo 'name: [' >data/topologies/catalog/mine.yaml; "
       "ORRERY_DATA=data \"$ORRERY\" doctor",
       3, "problem  clusters"},
      {"ProfileOfADeviceThatIsBroken",
       "mkdir -p data/costmodel/profiles/devices; echo '{' "
       ">data/costmodel/profiles/devices/v100.json; ORRERY_DATA=data \"$ORRERY\" doctor",
       3, "data/costmodel/profiles/devices/v100.json"},
  };
}

std::vector<Broken> rows() {
  std::vector<Broken> all = outputs();
  for (const auto& group : {surroundings(), installations()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

/// The program as it is where the checkout that built it is gone: the path in it leads nowhere.
void write_moved(const fs::path& to) {
  std::ifstream in(program_under_test(), std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  std::string program = bytes.str();
  const std::string built = tests::kSourceDir, gone = built.substr(0, built.size() - 1) + "~";
  for (std::size_t at = 0; (at = program.find(built, at)) != std::string::npos; at += built.size())
    program.replace(at, built.size(), gone);
  std::ofstream(to, std::ios::binary) << program;
  fs::permissions(to, fs::perms::owner_all);
}

/// A copy that another user can reach, with its data.
fs::path open_copy(const fs::path& folder) {
  const fs::path bin = folder / "bin", share = folder / "share" / "orrery";
  fs::create_directories(bin);
  fs::copy_file(program_under_test(), bin / "orrery");
  for (const char* data : {"model/catalog", "topologies/catalog", "costmodel/profiles"}) {
    fs::create_directories((share / data).parent_path());
    fs::copy(fs::path(tests::kSourceDir) / data, share / data, fs::copy_options::recursive);
  }
  return bin / "orrery";
}

class BrokenEnvironment : public testing::TestWithParam<Broken> {};

TEST_P(BrokenEnvironment, IsSaidAndLeavesNothingHalfWritten) {
  const Broken& b = GetParam();
  // Sanitizers reserve terabytes of addresses.
  if (b.script.find("ulimit -v") != std::string::npos &&
      program_under_test() != fs::path(tests::kCli))
    GTEST_SKIP() << "the program under test is of another build";
  const ScratchFolder folder, programs;
  fs::path program = program_under_test();
  std::string shell = "/bin/sh";
  if (b.script.find("./moved") != std::string::npos) write_moved(folder.path() / "moved");
  folder.write("secret.json", "{}");
  fs::permissions(folder.path() / "secret.json", fs::perms::owner_read);
  if (b.as_other_user) {
    if (::getuid() == 0) {
      fs::permissions(programs.path(), fs::perms(0755));
      fs::permissions(folder.path(), fs::perms(0755));
      program = open_copy(programs.path());
      shell = "/usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups /bin/sh";
    } else {
      fs::permissions(folder.path() / "secret.json", fs::perms::none);
      fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
    }
  }
  programs.write("run.sh", "ORRERY='" + program.string() + "'\n" + b.script + "\n");
  fs::permissions(programs.path() / "run.sh", fs::perms(0755));
  const CliResult r = run_cli("-c '" + shell + " " + (programs.path() / "run.sh").string() + "'",
                              folder.path(), "/bin/sh");
  fs::permissions(folder.path(), fs::perms::owner_all);
  EXPECT_EQ(r.exit_code, b.exit_code) << r.out << r.err;
  EXPECT_THAT(r.out + r.err, HasSubstr(b.said));
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path() << " is left";
}

INSTANTIATE_TEST_SUITE_P(Golden, BrokenEnvironment, testing::ValuesIn(rows()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace orrery::golden
