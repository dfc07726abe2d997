#include "executor/state/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace orrery::executor {
namespace {

using ::testing::HasSubstr;

class TokenFile : public ::testing::Test {
 protected:
  template <class T>
  std::string write(const std::vector<T>& tokens, const std::string& suffix = ".bin") {
    path_ = std::filesystem::temp_directory_path() /
            ("orrery-tokens-" + std::to_string(::getpid()) + suffix);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(T)));
    return path_;
  }
  ~TokenFile() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

std::vector<std::int64_t> read(const TokenData& data, const Batch& batch,
                               TokenData::What what = TokenData::What::kTokens) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(batch.sequences * batch.tokens));
  const auto done = data.read(batch, what, out);
  EXPECT_TRUE(done) << base::to_string(done.error());
  return out;
}

template <class T>
std::vector<T> counting(std::size_t n) {
  std::vector<T> v(n);
  std::iota(v.begin(), v.end(), T{0});
  return v;
}

TEST_F(TokenFile, SequencesRunOnAndTargetsAreOneAhead) {
  const auto data = TokenData::open(write(counting<std::uint16_t>(500)), 500, 16);
  ASSERT_TRUE(data) << base::to_string(data.error());
  const Batch batch{
      .seed = 1, .step = 3, .global_batch = 4, .first_sequence = 0, .sequences = 4, .tokens = 16};
  const auto ids = read(*data, batch), targets = read(*data, batch, TokenData::What::kTargets);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(targets[i], ids[i] + 1);
    if (i % 16 != 0) {
      EXPECT_EQ(ids[i], ids[i - 1] + 1);
    }
  }
}

TEST_F(TokenFile, ZigZagPartsHoldEarlyAndLateTokens) {
  const auto data = TokenData::open(write(counting<std::uint16_t>(5000)), 5000, 8);
  ASSERT_TRUE(data);
  Batch batch{.seed = 9, .global_batch = 1, .sequences = 1, .tokens = 8};
  const auto whole = read(*data, batch, TokenData::What::kTargets);
  batch.tokens = 4;
  batch.token_parts = 2;
  batch.token_chunks = 4;
  using testing::ElementsAre;
  EXPECT_THAT(read(*data, batch, TokenData::What::kTargets),
              ElementsAre(whole[0], whole[1], whole[6], whole[7]));
  batch.token_part = 1;
  EXPECT_THAT(read(*data, batch, TokenData::What::kTargets),
              ElementsAre(whole[2], whole[3], whole[4], whole[5]));
}

TEST_F(TokenFile, MaskedSequencesHideTheTokensThatAreTargets) {
  const auto data = TokenData::open(write(counting<std::uint16_t>(5000)), 6000, 100);
  ASSERT_TRUE(data);
  Batch batch{.seed = 9, .step = 2, .global_batch = 40, .sequences = 40, .tokens = 100};
  const auto plain = read(*data, batch);
  batch.masked = true;
  const auto tokens = read(*data, batch), targets = read(*data, batch, TokenData::What::kTargets);
  int hidden = 0, kept = 0, other = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (targets[i] < 0) {
      EXPECT_EQ(tokens[i], plain[i]);
      continue;
    }
    EXPECT_EQ(targets[i], plain[i]);
    ++(tokens[i] == 5999 ? hidden : tokens[i] == plain[i] ? kept : other);
    EXPECT_GE(tokens[i], 0);
    EXPECT_LT(tokens[i], 6000);
  }
  for (std::size_t s = 0; s < 40; ++s)
    EXPECT_EQ(std::count_if(targets.begin() + 100 * s, targets.begin() + 100 * (s + 1),
                            [](std::int64_t t) { return t >= 0; }),
              targets_of_sequence(100, true));
  // of 600 targets 80, 10 and 10 %, within four deviations
  EXPECT_NEAR(hidden, 480, 40);
  EXPECT_NEAR(kept, 60, 30);
  EXPECT_NEAR(other, 60, 30);
  // Part 1 of two of the same sequences.
  batch.tokens = 50;
  batch.token_parts = 2;
  batch.token_part = 1;
  const auto half = read(*data, batch);
  EXPECT_TRUE(std::equal(half.begin(), half.begin() + 50, tokens.begin() + 50));
}

TEST_F(TokenFile, ADecoderReadsWhatStandsBehindItsEncodersTokens) {
  const auto data = TokenData::open(write(counting<std::uint16_t>(500)), 500, 16);
  ASSERT_TRUE(data);
  Batch batch{.seed = 5, .global_batch = 6, .sequences = 6, .tokens = 8, .encoder_tokens = 8};
  const auto decoder = read(*data, batch), targets = read(*data, batch, TokenData::What::kTargets);
  batch.to_encoder = true;
  const auto encoder = read(*data, batch);
  for (std::size_t i = 0; i < encoder.size(); ++i) {
    EXPECT_EQ(decoder[i], encoder[i] + 8);
    EXPECT_EQ(targets[i], decoder[i] + 1);
    EXPECT_EQ(encoder[i], encoder[i / 8 * 8] + static_cast<std::int64_t>(i % 8));
  }
  EXPECT_EQ(TokenData::open(write(counting<std::uint16_t>(16)), 500, 16).error().front().code,
            base::ErrorCode::kInconsistent);
}

TEST_F(TokenFile, ABatchIsTheSameHoweverItIsSplit) {
  const auto data = TokenData::open(write(counting<std::uint16_t>(5000)), 5000, 8);
  ASSERT_TRUE(data);
  Batch batch{
      .seed = 9, .step = 2, .global_batch = 8, .first_sequence = 0, .sequences = 8, .tokens = 8};
  const auto whole = read(*data, batch);
  std::vector<std::int64_t> pieces;
  batch.sequences = 2;
  for (batch.first_sequence = 0; batch.first_sequence < 8; batch.first_sequence += 2) {
    const auto piece = read(*data, batch);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
  batch.step = 3;
  EXPECT_NE(read(*data, batch), std::vector<std::int64_t>(whole.begin(), whole.begin() + 16))
      << "another step, another batch";
}

TEST_F(TokenFile, WideTokensWhenTheVocabularyNeedsThem) {
  const auto data = TokenData::open(write(std::vector<std::uint32_t>(64, 100'000)), 128'000, 8);
  ASSERT_TRUE(data);
  EXPECT_EQ(data->size(), 64);
  EXPECT_EQ(read(*data, {.seed = 1,
                         .step = 0,
                         .global_batch = 1,
                         .first_sequence = 0,
                         .sequences = 1,
                         .tokens = 8})
                .front(),
            100'000);
}

TEST_F(TokenFile, FaultsAreDiagnostics) {
  EXPECT_EQ(TokenData::open("/nowhere/tokens.bin", 256, 8).error().front().code,
            base::ErrorCode::kNotFound);
  EXPECT_EQ(TokenData::open("/tmp", 256, 8).error().front().code, base::ErrorCode::kIo);
  const auto small = TokenData::open(write(counting<std::uint16_t>(8)), 256, 8);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().front().message, HasSubstr("too few"));
  const auto data = TokenData::open(write(std::vector<std::uint16_t>(64, 300)), 256, 8);
  ASSERT_TRUE(data);
  std::vector<std::int64_t> out(8);
  const auto read = data->read(
      {.seed = 1, .step = 0, .global_batch = 1, .first_sequence = 0, .sequences = 1, .tokens = 8},
      TokenData::What::kTokens, out);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().front().message, HasSubstr("token 300"));
}

TEST(BuiltInCorpus, IsTextForAVocabularyOfBytes) {
  const auto data = TokenData::open("", 256, 128);
  ASSERT_TRUE(data) << base::to_string(data.error());
  EXPECT_GT(data->size(), 10'000);
  for (const std::int64_t id : read(*data, {.seed = 1,
                                           .step = 0,
                                           .global_batch = 8,
                                           .first_sequence = 0,
                                           .sequences = 8,
                                           .tokens = 128})) {
    EXPECT_TRUE(id == '\n' || (id >= ' ' && id <= '~')) << id;
  }
}

}  // namespace
}  // namespace orrery::executor
