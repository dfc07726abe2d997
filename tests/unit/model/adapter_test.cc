// Low-rank adapters: names, counts and work by hand.
#include "model/adapter.h"

#include <gtest/gtest.h>

#include "model/segment.h"
#include "model/spec.h"

namespace orrery::model {
namespace {

ModelSpec adapted(const char* name, std::int64_t rank, std::string_view targets) {
  return with_adapter(find_model(name).value(), adapter_of(rank, targets).value()).value();
}

TEST(Adapter, TargetsAreProductsOrSetsOfThem) {
  EXPECT_EQ(targets_of(adapter_of(8, "all-linear").value()), "qkv,projection,mlp-in,mlp-out");
  EXPECT_EQ(targets_of(adapter_of(8, "mlp-out, attention").value()), "qkv,projection,mlp-out");
  EXPECT_FALSE(adapter_of(8, "q_proj").has_value());
  EXPECT_FALSE(adapter_of(8, "").has_value());
}

TEST(Adapter, ParametersAreRankTimesBothSides) {
  const ModelSpec m = adapted("llama-3-70b", 16, "all-linear");
  // qkv 8192 + 10240, projection 2 · 8192, gate and up 8192 + 57344, down 28672 + 8192
  EXPECT_EQ(m.trained_parameters(), 80 * 16 * (18432 + 16384 + 65536 + 36864));
  EXPECT_EQ(m.parameters(), find_model("llama-3-70b")->parameters());
  EXPECT_EQ(adapted("llama-3-70b", 16, "qkv").trained_parameters(), 80 * 16 * 18432);
}

TEST(Adapter, StepIsTwoPassesOfFrozenProductsAndThreeOfAdapters) {
  const ModelSpec plain = find_model("llama-3-8b").value(), m = adapted("llama-3-8b", 16, "qkv");
  const double s = 4096, attention = 4 * s * s * 4096 * 32;
  const double products = plain.forward_matmul_flops(4096) - attention;
  EXPECT_NEAR(m.training_matmul_flops(4096),
              3 * attention + 2 * products + 6 * s * 32 * 16 * (4096 + 6144), 1e-9 * products);
  EXPECT_EQ(plain.training_matmul_flops(4096), 3 * plain.forward_matmul_flops(4096));
}

TEST(Adapter, OtherModelsAreRefusedByName) {
  const auto refused = [](const char* name, std::string_view targets) {
    const auto m = with_adapter(find_model(name).value(), adapter_of(8, targets).value());
    return m ? std::string() : m.error().front().message;
  };
  EXPECT_NE(refused("mixtral-8x7b", "mlp").find("experts"), std::string::npos);
  EXPECT_EQ(refused("mixtral-8x7b", "attention"), "");
  EXPECT_NE(refused("deepseek-v3", "qkv").find("latent"), std::string::npos);
  EXPECT_NE(refused("t5-large", "attention").find("encoder"), std::string::npos);
}

TEST(Adapter, DigestIsOfItsRankAndTargets) {
  const std::string plain = find_model("llama-3-8b")->fingerprint();
  EXPECT_NE(adapted("llama-3-8b", 8, "qkv").fingerprint(), plain);
  EXPECT_NE(adapted("llama-3-8b", 8, "qkv").fingerprint(),
            adapted("llama-3-8b", 16, "qkv").fingerprint());
  EXPECT_NE(adapted("llama-3-8b", 8, "qkv").fingerprint(),
            adapted("llama-3-8b", 8, "mlp").fingerprint());
}

// x [T, 64], A [4, 64], B [96, 4]; T = 2 · 8 tokens, bf16.
TEST(Adapter, WorkByHand) {
  SegmentShape in{.kind = SegmentKind::kAdapterIn,
                  .dtype = DType::kBFloat16,
                  .sequences = 2,
                  .tokens = 8,
                  .in = 64,
                  .out = 4};
  SegmentShape out = in;
  out.kind = SegmentKind::kAdapterOut;
  out.in = 4;
  out.out = 96;
  constexpr double kT = 16, kE = 2;
  EXPECT_EQ(work(in, Phase::kF).flops.raw(), 2 * kT * 64 * 4);
  EXPECT_EQ(work(in, Phase::kF).bytes.raw(), kE * (kT * 64 + 4 * 64 + kT * 4));
  EXPECT_EQ(work(out, Phase::kF).bytes.raw(), kE * (kT * 4 + 4 * 96 + 2 * kT * 96));
  EXPECT_EQ(work(in, Phase::kB).bytes.raw(), kE * (kT * 4 + 4 * 64 + 2 * kT * 64));
  EXPECT_EQ(work(out, Phase::kB).bytes.raw(), kE * (kT * 96 + 4 * 96 + kT * 4));
  EXPECT_EQ(work(out, Phase::kG).bytes.raw(), kE * (kT * 96 + kT * 4) + 8 * 4 * 96);
  EXPECT_EQ(work(in, Phase::kBG).transient_bytes, 2 * 64 * 4);
}

}  // namespace
}  // namespace orrery::model
