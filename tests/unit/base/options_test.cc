#include "base/options.h"

#include <gtest/gtest.h>

namespace orrery::base {
namespace {

CommandSpec plan() {
  return {
      .name = "plan",
      .summary = "find the fastest plan",
      .examples = {{"orrery plan --model llama2-7b", "split 7B on one host"}},
      .positionals = {{.name = "CLUSTER", .help = "name or file"},
                      {.name = "EXTRA", .required = false}},
      .options =
          {{.name = "model", .value_name = "NAME", .help = "what to train", .required = true},
           {.name = "ranks",
            .value_name = "N",
            .type = OptionType::kInt,
            .default_value = "8",
            .min = 1,
            .max = 64,
            .help = "number of ranks"},
           {.name = "slack", .type = OptionType::kDouble, .min = 0, .max = 1},
           {.name = "memory", .type = OptionType::kBytes, .min = 1},
           {.name = "timeout", .type = OptionType::kDuration, .default_value = "1.5s"},
           {.name = "format", .default_value = "text", .choices = {"text", "json"}},
           {.name = "verbose", .type = OptionType::kFlag},
           {.name = "trace-ticks", .type = OptionType::kFlag, .help = "for us", .hidden = true}},
  };
}

Result<Options> parse(const std::vector<std::string>& args) { return parse_options(plan(), args); }

std::string fault(const std::vector<std::string>& args) {
  const auto options = parse(args);
  return options ? "no fault" : to_string(options.error());
}

TEST(Options, AreTyped) {
  const auto o = parse({"--model", "llama2-7b", "--ranks=16", "dgx", "--slack", "0.25", "--memory",
                        "36GiB", "--timeout=2ms", "--format", "json", "--verbose"});
  ASSERT_TRUE(o) << to_string(o.error());
  EXPECT_EQ(o->string("model"), "llama2-7b");
  EXPECT_EQ(o->integer("ranks"), 16);
  EXPECT_EQ(o->real("slack"), 0.25);
  EXPECT_EQ(o->bytes("memory"), 36_GiB);
  EXPECT_EQ(o->duration("timeout"), 2_ms);
  EXPECT_EQ(o->string("format"), "json");
  EXPECT_TRUE(o->flag("verbose"));
  EXPECT_FALSE(o->flag("trace-ticks"));
  EXPECT_EQ(o->string("CLUSTER"), "dgx");
  EXPECT_FALSE(o->has("EXTRA"));
}

TEST(Options, DefaultsAreNotGiven) {
  const auto o = parse({"--model=m", "dgx"});
  ASSERT_TRUE(o) << to_string(o.error());
  EXPECT_EQ(o->integer("ranks"), 8);
  EXPECT_EQ(o->duration("timeout"), 1.5_s);
  EXPECT_TRUE(o->has("ranks"));
  EXPECT_FALSE(o->given("ranks"));
  EXPECT_FALSE(o->has("slack"));
}

TEST(Options, BehindTwoDashesAreArguments) {
  const auto o = parse({"dgx", "--model", "m", "--", "--y"});
  ASSERT_TRUE(o) << to_string(o.error());
  EXPECT_EQ(o->string("EXTRA"), "--y");
}

TEST(Options, NegativeNumbersAreValues) {
  EXPECT_EQ(fault({"--model", "m", "dgx", "--slack", "-1"}),
            "error[E0005]: option '--slack': -1 is less than 0; 0 to 1");
}

TEST(Options, UnknownOnesAreNamedWithTheNearest) {
  EXPECT_EQ(fault({"--model", "m", "dgx", "--rank=4"}),
            "error[E0015]: unknown option '--rank' of 'plan'; did you mean '--ranks'?");
  EXPECT_EQ(fault({"--model", "m", "dgx", "--modle", "x"}),
            "error[E0015]: unknown option '--modle' of 'plan'; did you mean '--model'?");
  EXPECT_EQ(fault({"--model", "m", "dgx", "-x"}),
            "error[E0015]: unknown option '-x' of 'plan'; options: --model, "
            "--ranks, --slack, --memory, --timeout, --format, --verbose, "
            "--help");
}

TEST(Options, AbbreviationsAreNotGuessed) { EXPECT_NE(fault({"--mod", "m", "dgx"}), "no fault"); }

TEST(Options, EveryFaultIsReported) {
  EXPECT_EQ(fault({"--ranks", "65", "--memory", "36", "--format", "jsn", "--slack", "much"}),
            "error[E0015]: option '--model' of 'plan' is required\n"
            "error[E0005]: option '--ranks': 65 is more than 64; 1 to 64\n"
            "error[E0014]: option '--slack': expected a number, found 'much'\n"
            "error[E0004]: option '--memory': '36' has no unit: expected a size; units: B kB MB GB "
            "TB KiB MiB GiB TiB\n"
            "error[E0014]: option '--format': unknown value 'jsn'; did you mean 'json'?\n"
            "error[E0015]: 'plan' needs CLUSTER");
}

TEST(Options, MissingAndSuperfluousValues) {
  EXPECT_EQ(fault({"dgx", "--model"}), "error[E0015]: option '--model' needs a value");
  EXPECT_EQ(fault({"dgx", "--model="}), "error[E0015]: option '--model' needs a value");
  EXPECT_EQ(fault({"dgx", "--model", "m", "--verbose=1"}),
            "error[E0015]: option '--verbose' takes no value");
  EXPECT_EQ(fault({"dgx", "--model", "m", "--model", "n"}),
            "error[E0015]: option '--model' is given twice");
  EXPECT_EQ(fault({"--model", "m"}), "error[E0015]: 'plan' needs CLUSTER");
  EXPECT_EQ(fault({"dgx", "--model", "m", "--ranks", "4.0"}),
            "error[E0014]: option '--ranks': expected an integer, found '4.0'");
}

TEST(Options, SuperfluousArgumentsAreRefused) {
  CommandSpec bare{.name = "bare", .summary = ""};
  const auto o = parse_options(bare, std::vector<std::string>{"x"});
  ASSERT_FALSE(o);
  EXPECT_EQ(to_string(o.error()), "error[E0015]: unexpected argument 'x' of 'bare'");
}

TEST(Options, HelpStopsChecking) {
  for (const char* flag : {"--help", "-h"}) {
    const auto o = parse({flag});
    ASSERT_TRUE(o) << to_string(o.error());
    EXPECT_TRUE(o->help_requested());
  }
}

TEST(OptionsDeathTest, ALookupOutsideTheTableIsOurBug) {
  const auto o = parse({"--model", "m", "dgx"});
  ASSERT_TRUE(o);
  EXPECT_DEATH(static_cast<void>(o->integer("rank")), "no option 'rank'");
  EXPECT_DEATH(static_cast<void>(o->real("ranks")), "another type");
  EXPECT_DEATH(static_cast<void>(o->real("slack")), "has no value");
}

TEST(HelpText, LeadsWithExamples) {
  EXPECT_EQ(help_text(plan()), R"(orrery plan: find the fastest plan

Examples:
  orrery plan --model llama2-7b
      split 7B on one host

Usage: orrery plan CLUSTER [EXTRA] [options]
  CLUSTER                    name or file

Options:
  --model NAME               what to train (required)
  --ranks N                  number of ranks [8]
  --slack VALUE
  --memory VALUE
  --timeout VALUE            [1.5s]
  --format VALUE             (text, json) [text]
  --verbose
  --help                     this text
)");
}

TEST(Settings, ArePartFieldAndValue) {
  const auto settings = parse_settings("ib.bandwidth=2x, H100.v2.memory = 96 GiB");
  ASSERT_TRUE(settings);
  EXPECT_EQ(*settings,
            (std::vector<Setting>{{"ib", "bandwidth", "2x"}, {"H100.v2", "memory", "96 GiB"}}));
  EXPECT_EQ((*settings)[0].factor(), 2.0);
  EXPECT_FALSE((*settings)[1].factor());
}

TEST(Settings, OfAnotherFormAreAllFaults) {
  const auto settings = parse_settings("bandwidth=2x,ib.bandwidth,ib.latency=-1x");
  ASSERT_FALSE(settings);
  EXPECT_EQ(settings.error().size(), 3U);
}

}  // namespace
}  // namespace orrery::base
