// What a row's empty cells mean, and what is said of a wrong one.
#include "cli/tables/table_row.h"

#include "base/file.h"
#include "tests/support/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

using testing::HasSubstr;

base::Result<TableRow> row_of(const std::string& header, const std::string& cells,
                              const TableDefaults& given = {}, std::int64_t devices_per_host = 8) {
  const base::Csv csv = base::parse_csv(header + "\n" + cells + "\n", "rows.csv");
  std::vector<std::string> notes;
  TableDefaults defaults = given;
  if (defaults.plan.global_batch == 1) defaults.plan.global_batch = 64;
  if (defaults.plan.dp == 1) defaults.plan.dp = 0;
  TRY(const TableHeader columns, read_table_header(csv.records.at(0), "rows.csv", notes));
  TRY(TableRow row, read_table_row(csv.records.at(1), columns, defaults, "rows.csv"));
  TRY_VOID(resolve_row(row, devices_per_host, csv.records.at(1), columns, "rows.csv"));
  return row;
}

std::string fault_of(const std::string& header, const std::string& cells) {
  const auto row = row_of(header, cells);
  return row ? "a row" : base::to_string(row.error());
}

TEST(TableRow, EmptyCellsMeanWhatTheColumnSays) {
  const TableRow r = row_of("layers,hidden,heads,gpus,tp,pp,kv_heads,ffn,seq,vocab,dp,schedule",
                            "24,1024,16,32,4,2,,,,,,")
                         .value();
  EXPECT_EQ(r.cluster, "dgx-a100");
  EXPECT_EQ(r.hosts, 4);
  EXPECT_EQ(r.plan.dp, 4);
  EXPECT_EQ(r.model.kv_heads, 16);
  EXPECT_EQ(r.model.head_dim, 64);
  EXPECT_EQ(r.model.ffn, 4096);
  EXPECT_EQ(r.model.vocab, 51200);
  EXPECT_EQ(r.plan.sequence, 2048);
  EXPECT_EQ(r.plan.schedule, plan::Schedule::k1F1B);
  EXPECT_EQ(r.plan.precision, model::Precision::kBFloat16);
  EXPECT_EQ(r.model.norm, model::NormKind::kLayerNorm);
}

TEST(TableRow, AGatedModelIsALlama) {
  const TableRow r = row_of("layers,hidden,heads,gated", "32,4096,32,yes").value();
  EXPECT_EQ(r.model.ffn, 11008);  // Llama-2-7B
  EXPECT_EQ(r.model.norm, model::NormKind::kRmsNorm);
  EXPECT_FALSE(r.model.tied_embeddings);
  // Llama-2-13B
  EXPECT_EQ(row_of("layers,hidden,heads,gated", "40,5120,40,TRUE").value().model.ffn, 13824);
}

TEST(TableRow, AModelOfTheCommandFillsEmptySizes) {
  TableDefaults defaults;
  defaults.model = model::find_model("llama-3-8b").value();
  const TableRow r = row_of("tp,seq", "2,4096", defaults).value();
  EXPECT_EQ(r.model.layers, 32);
  EXPECT_EQ(r.model.kv_heads, 8);
  EXPECT_EQ(r.model.ffn, 14336);
  EXPECT_EQ(r.plan.sequence, 4096);
  EXPECT_EQ(row_of("layers", "16", defaults).value().model.layers, 16);
  EXPECT_EQ(row_of("tp", "2", defaults).value().model.fingerprint(), defaults.model->fingerprint());
}

TEST(TableRow, GroupsOfExpertsAreThoseOfTheModelUnlessTheRowSaysOtherExperts) {
  TableDefaults defaults;
  defaults.model = model::find_model("mixtral-8x7b").value();
  const model::Routing routing{.sigmoid = true, .groups = 4, .groups_per_token = 2};
  defaults.model->routing = routing;
  const auto read = [&](const char* column, const char* cell) {
    return row_of(column, cell, defaults).value().model.routing;
  };
  EXPECT_EQ(read("tp", "2"), routing);
  EXPECT_EQ(read("experts", "8"), routing);
  EXPECT_EQ(read("experts", "6"), model::Routing{.sigmoid = true});
  EXPECT_EQ(read("top_k", "5"), model::Routing{.sigmoid = true});
}

TEST(TableRow, AScheduleOfAllRowsStaysWhereARowHasItsStages) {
  TableDefaults defaults;
  defaults.plan.schedule = plan::Schedule::kZeroBubbleV;
  const auto schedule = [&](const char* pp) {
    return row_of("model,pp,virtual_stages", fmt::format("gpt2,{}", pp), defaults)
        .value()
        .plan.schedule;
  };
  EXPECT_EQ(schedule("2,2"), plan::Schedule::kZeroBubbleV);
  EXPECT_EQ(schedule("2,"), plan::Schedule::kZeroBubbleV);
  EXPECT_EQ(schedule("1,"), plan::Schedule::k1F1B);
}

TEST(TableRow, ANamedModelTakesTheSequenceOfAllRows) {
  TableDefaults defaults;
  EXPECT_EQ(row_of("model", "gpt2", defaults).value().plan.sequence, 1024);
  defaults.plan.sequence = 256;
  EXPECT_EQ(row_of("model", "gpt2", defaults).value().plan.sequence, 256);
  EXPECT_EQ(row_of("model,seq", "gpt2,512", defaults).value().plan.sequence, 512);
}

// DeepSeek-V2-Lite has a dense block in front of its mixtures.
TEST(TableRow, AModelWithBlocksOfSeveralKindsKeepsItsSizes) {
  TableDefaults defaults;
  defaults.model = model::find_model("deepseek-v2-lite").value();
  const TableRow r = row_of("tp,seq", "2,4096", defaults).value();
  EXPECT_EQ(r.plan.sequence, 4096);
  model::ModelSpec longer = *defaults.model;
  longer.max_positions = 4096;
  EXPECT_EQ(r.model.fingerprint(), longer.fingerprint());
  for (const char* size : {"experts", "top_k", "ffn", "layers", "hidden"}) {
    const auto refused = row_of(size, "8", defaults);
    ASSERT_FALSE(refused.has_value()) << size;
    EXPECT_THAT(base::to_string(refused.error()),
                HasSubstr("stands beside model 'deepseek-v2-lite'; its blocks are of several"));
  }
}

TEST(TableRow, DegreesGpusAndHostsFollowFromOneAnother) {
  // 12 devices
  EXPECT_EQ(row_of("layers,hidden,heads,tp,pp,dp", "8,64,8,2,3,2").value().hosts, 2);
  EXPECT_EQ(row_of("layers,hidden,heads,hosts,tp", "8,64,8,2,2").value().plan.dp, 8);  // all 16
  EXPECT_EQ(row_of("layers,hidden,heads,cp,gpus", "8,64,8,4,8").value().plan.dp, 2);
  EXPECT_EQ(row_of("layers,hidden,heads,gpus", "8,64,8,4", {}, 4).value().hosts, 1);
}

TEST(TableRow, VirtualStagesMakeTheScheduleInterleavedAndOneMakesIt1F1B) {
  EXPECT_EQ(row_of("layers,hidden,heads,pp,virtual_stages", "8,64,8,2,2").value().plan.schedule,
            plan::Schedule::kInterleaved);
  EXPECT_EQ(row_of("layers,hidden,heads,pp,schedule", "8,64,8,2,interleaved").value().plan.schedule,
            plan::Schedule::k1F1B);
}

TEST(TableRow, NumbersOfTableProgramsAndOneRankSequenceParallelismAreTaken) {
  const TableRow r =
      row_of("layers,hidden,heads,tp,sequence_parallel,zero", "8.0,64.0, 8 ,1.0,yes,1.0").value();
  EXPECT_EQ(r.model.layers, 8);
  EXPECT_FALSE(r.plan.sequence_parallel);
  EXPECT_EQ(r.plan.zero, 1);
}

TEST(TableRow, Fp16IsPricedAsBf16AndSaysSo) {
  const TableRow r = row_of("layers,hidden,heads,precision", "8,64,8,fp16").value();
  EXPECT_EQ(r.plan.precision, model::Precision::kBFloat16);
  EXPECT_EQ(r.note, "fp16 is priced as bf16");
}

TEST(TableRow, EveryFaultIsSaidAtItsCell) {
  EXPECT_EQ(fault_of("layers,hidden,heads,tp", "8,64,8,3"),
            "rows.csv:2:8: error[E0006]: tp = 3 does not divide 8 heads\nrows.csv:2:8: "
            "error[E0006]: tp = 3 does not divide 256 ffn features");
  EXPECT_THAT(
      fault_of("layers,hidden,heads,recompute,zero", "8,64,8,selectiv,4"),
      testing::AllOf(
          HasSubstr(
              "rows.csv:2:8: error[E0014]: recompute is 'selectiv'; did you mean 'selective'?"),
          HasSubstr("rows.csv:2:17: error[E0005]: zero is 4")));
  EXPECT_THAT(fault_of("layers,hidden", "8,64"),
              HasSubstr("rows.csv:2:1: error[E0003]: heads is missing"));
  EXPECT_THAT(fault_of("layers,hidden,heads,gpus,tp", "8,64,8,12,8"),
              HasSubstr("rows.csv:2:8: error[E0006]: tp 8 * cp 1 * pp 1 does not divide 12 gpus"));
  EXPECT_THAT(fault_of("layers,hidden,heads,gpus,tp,dp", "8,64,8,16,8,4"),
              HasSubstr("is 32, not 16 gpus"));
  EXPECT_THAT(
      fault_of("layers,hidden,heads,gpus,hosts", "8,64,8,16,1"),
      HasSubstr("rows.csv:2:11: error[E0006]: 1 hosts of 8 devices for 16 gpus; 2 would do"));
  EXPECT_THAT(fault_of("layers,hidden,heads,pp", "8,64,8,16"), HasSubstr("16 stages for 8 layers"));
  EXPECT_THAT(fault_of("layers,hidden,heads,dp,global_batch", "8,64,8,8,12"),
              HasSubstr("rows.csv:2:10: error[E0006]: dp 8 * micro_batch 1 does not divide a "
                        "global batch of 12"));
  EXPECT_THAT(fault_of("layers,hidden,heads", "8,64,8,9"),
              HasSubstr("rows.csv:2:8: error[E0001]: the row has 4 cells, the header 3"));
  EXPECT_THAT(fault_of("layers,hidden,heads,ep", "8,64,8,2"), HasSubstr("ep = 2 and no experts"));
  EXPECT_THAT(fault_of("model,ep", "qwen3-30b-a3b,3"), HasSubstr("ep = 3 does not divide 128"));
  EXPECT_THAT(fault_of("model", "qwen3-30b"), HasSubstr("rows.csv:2:1: error"));
  EXPECT_THAT(fault_of("model,layers", "qwen3-30b-a3b,4"),
              HasSubstr("rows.csv:2:15: error[E0006]: layers stands beside model"));
  EXPECT_THAT(fault_of("layers,hidden,heads", "1048576,1048576,8"), HasSubstr("at most 1e15"));
  EXPECT_THAT(fault_of("layers,hidden,heads", "8.5,64,8"), HasSubstr("a whole number is wanted"));
}

TEST(TableColumns, AreAllInTheDocument) {
  const std::string document =
      base::read_file(tests::kSourceDir + std::string("/docs/schemas.md")).value();
  for (const auto* names : {&table_columns(), &kTableResults})
    for (const std::string& name : *names) EXPECT_THAT(document, HasSubstr("| `" + name + "` |"));
}

TEST(TableRow, AColumnTwiceIsAFaultAndASlipIsNoted) {
  const base::Csv csv = base::parse_csv("id,tp,micro_bach,tp\n", "rows.csv");
  std::vector<std::string> notes;
  const auto header = read_table_header(csv.records.at(0), "rows.csv", notes);
  ASSERT_FALSE(header);
  EXPECT_EQ(base::to_string(header.error()),
            "rows.csv:1:18: error[E0012]: column 'tp' stands there twice");
  EXPECT_EQ(notes, std::vector<std::string>{"rows.csv:1:7: note: column 'micro_bach' is carried "
                                            "through; did you mean 'micro_batch'?"});
}

}  // namespace
}  // namespace orrery::cli
