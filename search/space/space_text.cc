#include "search/space/space_text.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::search {
namespace {

using base::Diagnostic;
using base::ErrorCode;

struct Dimension {
  SpaceWord word;
  bool Space::*allowed;
};
constexpr std::string_view kUsual = "usual";  // those that are searched when nothing is said
constexpr std::array kDimensions{
    Dimension{{"dp", "", "data parallelism, everything replicated"}, &Space::data},
    Dimension{{"zero1", "", "data parallelism with optimizer states sharded"}, &Space::zero1},
    Dimension{{"zero2", "", "and gradients"}, &Space::zero2},
    Dimension{{"zero3", "", "and parameters"}, &Space::zero3},
    Dimension{{"operators", "", "zero3 of attention or MLP alone"}, &Space::operators},
    Dimension{{"slices", "", "zero3 of products in slices"}, &Space::slices},
    Dimension{{"tp", "", "tensor parallelism"}, &Space::tensor},
    Dimension{{"sp", "", "Megatron sequence parallelism"}, &Space::sequence_parallel},
    Dimension{{"tensor-overlap", "", "its collectives beside products"}, &Space::tensor_overlap},
    Dimension{{"ring", "", "context parallelism, ring attention"}, &Space::ring},
    Dimension{{"ulysses", "", "context parallelism, Ulysses"}, &Space::ulysses},
    Dimension{{"ep", "", "expert parallelism"}, &Space::expert},
    Dimension{{"folding", "", "experts over the tensor group as well, each whole on its rank"},
              &Space::folding},
    Dimension{{"hybrid", "", "states sharded inside a host, replicated across"}, &Space::hybrid},
    Dimension{{"strided", "", "tensor groups across, data groups on neighbours"}, &Space::strided},
    Dimension{{"pp", "", "pipelines"}, &Space::pipeline},
    Dimension{{"interleaved", "", "interleaved 1F1B, several virtual stages on a pipeline rank"},
              &Space::interleaved},
    Dimension{{"zb-h1", "", "ZB-H1, weight gradients fill the bubble"}, &Space::zero_bubble},
    Dimension{{"zb-v", "", "ZB-V, and two stages a rank, forth and back; layers alike"},
              &Space::zero_bubble_v},
    Dimension{{"dualpipe-v", "", "DualPipeV, a forward beside a backward; layers alike"},
              &Space::dual_pipe_v},
    Dimension{{"idle", "", "plans that leave devices idle"}, &Space::idle},
    Dimension{{"selective", "", "selective recomputation"}, &Space::recompute_selective},
    Dimension{{"operator", "", "recomputation by operator"}, &Space::recompute_operator},
    Dimension{{"recompute", "", "full recomputation"}, &Space::recompute_full},
    Dimension{{"offload", "",
               "activations on the host between forward and backward, optimizer states but for "
               "their update"},
              &Space::recompute_offload},
    Dimension{{"spatial-temporal", "", "each operator partitioned in space and time (PrimePar)"},
              &Space::spatial_temporal},
};

Diagnostic fault(ErrorCode code, std::string message, std::string hint) {
  return Diagnostic{.code = code, .message = std::move(message), .hint = std::move(hint)};
}

/// A whole number >= 1, or the fault.
base::Result<std::int64_t> number(std::string_view key, std::string_view value) {
  const auto n = base::parse_integer(value);
  if (!n || *n < 1 || *n > std::numeric_limits<int>::max()) {
    return base::fail(fault(ErrorCode::kOutOfRange, fmt::format("{}={}", key, value),
                            fmt::format("{} is a whole number from 1 on", key)));
  }
  return *n;
}

Diagnostic bad_word(std::string_view key, std::string_view value, std::string_view range) {
  return fault(ErrorCode::kBadValue, fmt::format("{}={}", key, value),
               fmt::format("{} is {}", key, range));
}

base::Result<void> fix_zero(std::string_view value, Space& space) {
  constexpr std::array kLevels{&Space::data, &Space::zero1, &Space::zero2, &Space::zero3};
  if (value.size() != 1 || value[0] < '0' || value[0] > '3')
    return base::fail(bad_word("zero", value, "0, 1, 2 or 3"));
  for (std::size_t level = 0; level < kLevels.size(); ++level)
    space.*kLevels[level] = level == as_index(value[0] - '0');
  return {};
}

/// One of several flags; `range` names them all.
template <std::size_t n>
base::Result<void> fix_one_of(
    std::string_view key, std::string_view value,
    const std::array<std::pair<std::string_view, bool Space::*>, n>& flags, std::string_view range,
    Space& space) {
  if (std::ranges::none_of(flags, [&](const auto& f) { return f.first == value; }))
    return base::fail(bad_word(key, value, range));
  for (const auto& [name, flag] : flags) space.*flag = name == value;
  return {};
}

base::Result<void> fix_recompute(std::string_view value, Space& space) {
  constexpr std::array<std::pair<std::string_view, bool Space::*>, 5> kKinds{
      {{"none", &Space::recompute_none},
       {"selective", &Space::recompute_selective},
       {"operator", &Space::recompute_operator},
       {"full", &Space::recompute_full},
       {"offload", &Space::recompute_offload}}};
  return fix_one_of("recompute", value, kKinds, "none, selective, operator, full or offload",
                    space);
}

base::Result<void> fix_states(std::string_view value, Space& space) {
  constexpr std::array<std::pair<std::string_view, bool Space::*>, 2> kWhere{
      {{"device", &Space::states_on_device}, {"host", &Space::states_on_host}}};
  return fix_one_of("states", value, kWhere, "device or host", space);
}

base::Result<void> fix_sp(std::string_view value, Space& space) {
  if (value != "on" && value != "off") return base::fail(bad_word("sp", value, "on or off"));
  space.sequence_parallel = value == "on";
  space.tensor_alone = value == "off";
  return {};
}

base::Result<void> fix_schedule(std::string_view value, Space& space) {
  constexpr std::array<std::pair<std::string_view, bool Space::*>, 6> kSchedules{
      {{"1f1b", &Space::one_f_one_b},
       {"gpipe", &Space::gpipe},
       {"interleaved", &Space::interleaved},
       {"zb-h1", &Space::zero_bubble},
       {"zb-v", &Space::zero_bubble_v},
       {"dualpipe-v", &Space::dual_pipe_v}}};
  return fix_one_of("schedule", value, kSchedules,
                    "1f1b, gpipe, interleaved, zb-h1, zb-v or dualpipe-v", space);
}

base::Result<void> fix_reduction(std::string_view value, Space& space) {
  constexpr std::array<std::pair<std::string_view, bool Space::*>, 3> kWhen{
      {{"step", &Space::reduce_per_step},
       {"micro_batch", &Space::reduce_per_micro_batch},
       {"end", &Space::reduce_at_end}}};
  return fix_one_of("grad_reduce", value, kWhen, "step, micro_batch or end", space);
}

base::Result<void> fix_operators(std::string_view value, Space& space) {
  for (const auto operators : {plan::ShardedOperators::kAll, plan::ShardedOperators::kAttention,
                               plan::ShardedOperators::kMlp}) {
    if (plan::to_string(operators) == value) space.fix_operators = operators;
  }
  space.operators = space.fix_operators && *space.fix_operators != plan::ShardedOperators::kAll;
  if (!space.fix_operators)
    return base::fail(bad_word("operators", value, "all, attention or mlp"));
  return {};
}

template <std::optional<int> Space::*Field>
base::Result<void> fix_degree(std::string_view key, std::string_view value, Space& space) {
  TRY(const std::int64_t n, number(key, value));
  space.*Field = as_int(n);
  return {};
}
base::Result<void> fix_context(std::string_view key, std::string_view value, Space& space) {
  TRY_VOID(fix_degree<&Space::fix_cp>(key, value, space));
  space.ring = space.ulysses = *space.fix_cp > 1;
  return {};
}
base::Result<void> fix_experts(std::string_view key, std::string_view value, Space& space) {
  TRY_VOID(fix_degree<&Space::fix_ep>(key, value, space));
  space.expert = *space.fix_ep > 1;
  return {};
}
base::Result<void> fix_pieces(std::string_view key, std::string_view value, Space& space) {
  TRY_VOID(fix_degree<&Space::fix_tensor_pieces>(key, value, space));
  space.tensor_overlap = *space.fix_tensor_pieces > 1;
  if (*space.fix_tensor_pieces > 64) return base::fail(bad_word(key, value, "at most 64"));
  return {};
}
base::Result<void> fix_slices(std::string_view key, std::string_view value, Space& space) {
  TRY_VOID(fix_degree<&Space::fix_slices>(key, value, space));
  space.slices = *space.fix_slices > 1;
  if (*space.fix_slices > 64) return base::fail(bad_word(key, value, "at most 64"));
  return {};
}
template <std::optional<std::int64_t> Space::*Field>
base::Result<void> fix_count(std::string_view key, std::string_view value, Space& space) {
  TRY(space.*Field, number(key, value));
  return {};
}

struct Key {
  SpaceWord word;
  base::Result<void> (*fix)(std::string_view key, std::string_view value, Space& space);
};
constexpr std::array kKeys{
    Key{{"tp", "1, 2, 4, ...", "tensor-parallel degree of every layer"},
        fix_degree<&Space::fix_tp>},
    Key{{"cp", "1, 2, 4, ...", "context-parallel degree of every layer"}, fix_context},
    Key{{"pp", "1, 2, ...", "pipeline stages"}, fix_degree<&Space::fix_pp>},
    Key{{"dp", "1, 2, ...", "data-parallel degree of every layer"}, fix_degree<&Space::fix_dp>},
    Key{{"ep", "1, 2, 4, ...", "expert-parallel degree of every layer with experts"}, fix_experts},
    Key{{"zero", "0 .. 3", "what data parallelism shards"},
        [](std::string_view, std::string_view v, Space& s) { return fix_zero(v, s); }},
    Key{{"sp", "on, off", "sequence parallelism of tensor-parallel layers"},
        [](std::string_view, std::string_view v, Space& s) { return fix_sp(v, s); }},
    Key{{"tensor_pieces", "1 .. 64", "in which its collectives run beside products"}, fix_pieces},
    Key{{"operators", "all, attention, mlp", "what zero 3 shards of a block"},
        [](std::string_view, std::string_view v, Space& s) { return fix_operators(v, s); }},
    Key{{"slices", "1 .. 64", "in which products run that zero 3 shards"}, fix_slices},
    Key{{"recompute", "none, selective, operator, full, offload", "of every layer"},
        [](std::string_view, std::string_view v, Space& s) { return fix_recompute(v, s); }},
    Key{{"grad_reduce", "step, micro_batch, end", "when gradients are reduced"},
        [](std::string_view, std::string_view v, Space& s) { return fix_reduction(v, s); }},
    Key{{"states", "device, host", "where optimizer states are but for their update"},
        [](std::string_view, std::string_view v, Space& s) { return fix_states(v, s); }},
    Key{{"micro_batches", "1, 2, ...", "micro-batches of a step"},
        fix_count<&Space::fix_micro_batches>},
    Key{{"micro_batch", "1, 2, ...", "sequences of a micro-batch on a data-parallel rank"},
        fix_count<&Space::fix_micro_batch>},
    Key{{"schedule", "1f1b, gpipe, interleaved, zb-h1, zb-v, dualpipe-v", "pipeline schedule"},
        [](std::string_view, std::string_view v, Space& s) { return fix_schedule(v, s); }},
    Key{{"virtual_stages", "1, 2, ...",
         "of a pipeline rank: 2 and more interleaved, 2 also in a V that is looked at"},
        fix_degree<&Space::fix_virtual_stages>},
};

/// Several virtual stages on a rank are what the interleaved schedule has, and two a V.
base::Result<void> settle_virtual_stages(bool schedule_is_fixed, Space& space) {
  if (!space.fix_virtual_stages) return {};
  const bool several = *space.fix_virtual_stages > 1;
  const bool v_shaped = space.zero_bubble_v || space.dual_pipe_v;
  if (schedule_is_fixed && v_shaped && *space.fix_virtual_stages == 2) return {};
  if (schedule_is_fixed && several != space.interleaved) {
    return base::fail(fault(
        ErrorCode::kInconsistent,
        fmt::format("virtual_stages={} beside this schedule", *space.fix_virtual_stages),
        "schedule=interleaved has more than one virtual stage on a rank, zb-v and dualpipe-v two"));
  }
  if (several) {
    const Space before = space;
    TRY_VOID(fix_schedule("interleaved", space));
    space.zero_bubble_v = before.zero_bubble_v && *space.fix_virtual_stages == 2;
    space.dual_pipe_v = before.dual_pipe_v && *space.fix_virtual_stages == 2;
    return {};
  }
  space.zero_bubble_v = space.dual_pipe_v = false;
  space.interleaved = false;
  return {};
}

template <class Row, std::size_t N>
std::vector<std::string> names_of(const std::array<Row, N>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.emplace_back(row.word.name);
  return names;
}

template <class Row, std::size_t N>
std::vector<SpaceWord> words_of(const std::array<Row, N>& rows) {
  std::vector<SpaceWord> words;
  for (const Row& row : rows) words.push_back(row.word);
  return words;
}

}  // namespace

std::vector<SpaceWord> space_dimensions() { return words_of(kDimensions); }
std::vector<SpaceWord> space_keys() { return words_of(kKeys); }

base::Result<Space> restrict_to_dimensions(std::string_view names, Space space) {
  base::ErrorSink sink;
  const Space usual = space;
  std::vector<std::string> seen;
  for (const Dimension& d : kDimensions) space.*d.allowed = false;
  for (const std::string& item : base::split(names, ',')) {
    const std::string_view name = base::trim(item);
    if (std::ranges::find(seen, name) != seen.end())
      sink.add(fault(ErrorCode::kDuplicateKey, fmt::format("dimension '{}' stands twice", name),
                     "name it once"));
    seen.emplace_back(name);
    bool known = name == kUsual;
    for (const Dimension& d : kDimensions) {
      const bool named = d.word.name == name;
      known = known || named;
      if (named || (name == kUsual && usual.*d.allowed)) space.*d.allowed = true;
    }
    if (!known)
      sink.add(fault(ErrorCode::kBadValue, fmt::format("unknown dimension '{}'", name),
                     base::did_you_mean(name, names_of(kDimensions), "dimensions")));
  }
  space.states_on_host = space.recompute_offload;
  if (seen == std::vector<std::string>{"spatial-temporal"})
    sink.add(fault(ErrorCode::kInconsistent, "embedding and head have no dimension",
                   "--space usual,spatial-temporal"));
  return sink.result(space);
}

base::Result<Space> fix_values(std::string_view text, Space space) {
  base::ErrorSink sink;
  std::vector<std::string> seen;
  for (const std::string& item : base::split(text, ',')) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) {
      sink.add(fault(ErrorCode::kUsage, fmt::format("'{}' is not key=value", item),
                     "for example tp=8,pp=2,zero=1"));
      continue;
    }
    const std::string key(base::trim(std::string_view(item).substr(0, equals)));
    const std::string value(base::trim(std::string_view(item).substr(equals + 1)));
    const auto row = std::ranges::find_if(kKeys, [&](const Key& k) { return k.word.name == key; });
    if (row == kKeys.end()) {
      sink.add(fault(ErrorCode::kBadValue, fmt::format("unknown key '{}'", key),
                     base::did_you_mean(key, names_of(kKeys), "keys")));
      continue;
    }
    if (std::ranges::find(seen, key) != seen.end())
      sink.add(
          fault(ErrorCode::kDuplicateKey, fmt::format("'{}' is fixed twice", key), "fix it once"));
    seen.push_back(key);
    if (auto fixed = row->fix(key, value, space); !fixed) sink.add(std::move(fixed).error());
  }
  if (auto settled =
          settle_virtual_stages(std::ranges::find(seen, "schedule") != seen.end(), space);
      !settled)
    sink.add(std::move(settled).error());
  space.tensor = space.tensor || space.fix_tp.value_or(1) > 1;
  space.pipeline = space.pipeline || space.fix_pp.value_or(1) > 1;
  return sink.result(space);
}

std::vector<Pruned> telling_reasons(std::vector<Pruned> pruned, std::size_t count) {
  std::stable_partition(pruned.begin(), pruned.end(),
                        [](const Pruned& p) { return p.reason != Reason::kFixed; });
  pruned.resize(std::min(pruned.size(), count));
  return pruned;
}

}  // namespace orrery::search
