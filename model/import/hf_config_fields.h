#pragma once
/// \file
/// What the readers of config.json share: hf_config.cc (models of one kind of block),
/// hf_config_kinds.cc (of several kinds, and of images).
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "model/spec.h"

namespace orrery::model::hf {

inline constexpr base::IntRange kSize{1, 1 << 20};   // layers, heads, hidden and MLP sizes
inline constexpr base::IntRange kTable{1, 1 << 30};  // vocabulary, positions
inline constexpr base::DoubleRange kEpsilon{1e-30, 0.1};
inline constexpr base::DoubleRange kCapacity{1e-3, 1e3};  // of the even share of an expert

/// A number under any of several spellings; nothing when none is there. Two that differ are a
/// fault.
struct Found {
  std::optional<std::int64_t> value;
  std::string_view key;  // the spelling in the file, or the current one
};
Found find_int(base::Reader& r, std::initializer_list<std::string_view> keys, base::IntRange range);
/// As find_int; when no spelling is there the first is missing. Wrong values give 1, so that later
/// checks stay meaningful.
Found require_int(base::Reader& r, std::initializer_list<std::string_view> keys,
                  base::IntRange range);
inline std::int64_t require_size(base::Reader& r, std::initializer_list<std::string_view> keys,
                                 base::IntRange range = kSize) {
  return *require_int(r, keys, range).value;
}
/// The activation under `key`, if it is there.
std::optional<Activation> find_activation(base::Reader& r, std::string_view key);

/// Rotary positions: base, share of a head, scaling; old keys (rope_theta, rope_scaling) and new
/// ones (rope_parameters), into the fields of BlockShape. @pre head_dim is read.
void read_rope(base::Reader& r, ModelSpec& m);

/// How routers choose, into ModelSpec::routing. @pre experts are read.
void read_routing(base::Reader& r, ModelSpec& m);

/// A model whose blocks take turns: `shapes` in order of the blocks, which become kinds and order.
/// Kinds that differ only in their keys and rotation stand together.
void set_order(ModelSpec& m, const std::vector<std::pair<std::string, BlockShape>>& shapes);

/// Marks the keys as known that change nothing of what is modelled, and those that are switched
/// off: every other key that nobody asks for is then a fault.
void ignore_harmless(const base::Node& root, base::Reader& r);

/// The families of hf_config_decoders.cc: decoders with one kind of block or several.
bool is_decoder(Family family);
void read_decoder(base::Reader& r, ModelSpec& m);
/// Of them those whose blocks have other mixers than attention over materialised keys.
void read_latent(base::Reader& r, ModelSpec& m);
void read_recurrent(base::Reader& r, ModelSpec& m);

/// The families of hf_config_kinds.cc. They fill in everything but name and family.
bool has_kinds(Family family);
void read_kinds(base::Reader& r, ModelSpec& m);

/// DeepSeek's first blocks are dense: makes the runs of a model whose own fields are those of its
/// mixtures.
void read_dense_first(base::Reader& r, ModelSpec& m);

}  // namespace orrery::model::hf
