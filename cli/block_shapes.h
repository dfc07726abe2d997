#pragma once
/// Blocks of GPT and Llama in sizes between and beyond those of the catalog: some to calibrate
/// with, others to hold the calibration against.
#include <array>

#include "executor/measure/block_timing.h"

namespace orrery::cli {

struct BlockRow {
  model::Family family = model::Family::kGpt2;  // kGpt2 or kLlama
  std::int64_t hidden = 0, heads = 0, kv_heads = 0, ffn = 0, tokens = 0, sequences = 0;
};

inline constexpr auto kGpt = model::Family::kGpt2, kLlama = model::Family::kLlama;
/// Around the models that train on a few cores: widths at few and at many rows, heads of 32 and 64,
/// with and without grouped queries.
inline constexpr std::array<BlockRow, 10> kCalibratedOnCpu{{{kGpt, 64, 2, 2, 256, 64, 4},
                                                            {kLlama, 64, 2, 2, 176, 64, 4},
                                                            {kGpt, 320, 10, 10, 1280, 64, 2},
                                                            {kLlama, 320, 10, 10, 864, 64, 2},
                                                            {kGpt, 384, 6, 6, 1536, 256, 2},
                                                            {kLlama, 320, 10, 5, 864, 256, 2},
                                                            {kGpt, 640, 10, 10, 2560, 64, 2},
                                                            {kLlama, 640, 10, 5, 1728, 64, 2},
                                                            {kGpt, 640, 10, 10, 2560, 256, 2},
                                                            {kLlama, 640, 10, 10, 1728, 256, 2}}};
/// None of them among the calibrated ones, inside their range.
inline constexpr std::array<BlockRow, 8> kHeldOutOnCpu{{{kGpt, 96, 3, 3, 384, 64, 6},
                                                        {kGpt, 192, 6, 6, 768, 128, 2},
                                                        {kGpt, 320, 5, 5, 1280, 256, 1},
                                                        {kGpt, 448, 7, 7, 1792, 96, 3},
                                                        {kLlama, 160, 5, 5, 432, 96, 4},
                                                        {kLlama, 256, 8, 4, 688, 192, 2},
                                                        {kLlama, 384, 6, 6, 1024, 64, 8},
                                                        {kLlama, 512, 8, 2, 1376, 160, 1}}};
inline constexpr std::array<BlockRow, 8> kHeldOutOnGpu{{{kGpt, 1536, 12, 12, 6144, 1024, 6},
                                                        {kGpt, 2560, 20, 20, 10240, 2048, 2},
                                                        {kGpt, 3072, 24, 24, 12288, 512, 5},
                                                        {kGpt, 5120, 40, 40, 20480, 1024, 1},
                                                        {kLlama, 1792, 14, 14, 4864, 2048, 3},
                                                        {kLlama, 2816, 22, 22, 7552, 1024, 3},
                                                        {kLlama, 3584, 28, 4, 18944, 4096, 1},
                                                        {kLlama, 5120, 40, 40, 13824, 1536, 2}}};

std::vector<executor::BlockCase> held_out_blocks(bool cpu);

/// Models of one such block each, with a vocabulary of bytes.
std::vector<executor::BlockCase> blocks_of(std::span<const BlockRow> rows);

}  // namespace orrery::cli
