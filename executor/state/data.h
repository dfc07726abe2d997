#pragma once
/// Training tokens. A sequence is chosen by (seed, step, index in the global batch) alone, so that
/// a batch never depends on the plan: every rank reads the sequences it is given and gets what any
/// other rank would.
///
/// Masked training (BERT, arXiv 1810.04805, section 3.1): 15 % of a sequence's positions have a
/// target, the token itself, and the rest -1. Of those positions 80 % are read as the mask, which
/// is the last id of the vocabulary, 10 % as any token, 10 % as they are; a function of (seed,
/// step, sequence, position) too. A sequence has as many targets as any other.
///
/// Encoder-decoders (T5's prefix language model, arXiv 1910.10683, section 3.2.3): the encoder
/// reads a text's first half, the decoder the second, each of whose tokens has the next as its
/// target.
///
/// Formats: nanoGPT's raw tokens (little-endian uint16, or uint32 when the vocabulary needs it, or
/// the name ends in ".u32"), mapped and never read as a whole; and the built-in corpus,
/// executor/data/*.txt as bytes (256 tokens).
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace orrery::executor {

/// Sequences [first_sequence, first_sequence + sequences) of a step's global batch; of each, part
/// `token_part` of `token_parts` equal ones of `tokens` tokens, in zig-zag order of `token_chunks`
/// chunks (model/segment.h).
struct Batch {
  std::uint64_t seed = 0;
  std::int64_t step = 0, global_batch = 0;
  std::int64_t first_sequence = 0, sequences = 0, tokens = 0, token_parts = 1, token_part = 0,
               token_chunks = 1;
  bool masked = false;
  // of an encoder-decoder: tokens of the text that its encoder reads, before its decoder's, of
  // which it reads as many; and whether these are the ones
  std::int64_t encoder_tokens = 0;
  bool to_encoder = false;
};
/// Positions of a sequence that have a target.
std::int64_t targets_of_sequence(std::int64_t tokens, bool masked);

class TokenData {
 public:
  /// `path` empty: the built-in corpus. `sequence`: tokens of a text, both halves of an
  /// encoder-decoder's. Errors: kNotFound, kIo; kInconsistent when there are too few tokens for
  /// one.
  static base::Result<TokenData> open(const std::string& path, std::int64_t vocabulary,
                                      std::int64_t sequence);

  /// Tokens of a batch, or the targets at their places, row by row. Error: kOutOfRange for a token
  /// past the vocabulary.
  enum class What : std::uint8_t { kTokens, kTargets };
  [[nodiscard]] base::Result<void> read(const Batch& batch, What what,
                                        std::span<std::int64_t> out) const;
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  TokenData() = default;
  [[nodiscard]] std::int64_t token(std::int64_t at) const;

  std::string name_;
  std::shared_ptr<const void> bytes_;  // of the built-in corpus, or mapped
  std::size_t width_ = 1;              // bytes of a token
  std::int64_t size_ = 0, vocabulary_ = 0;
};

}  // namespace orrery::executor
