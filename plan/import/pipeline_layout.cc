#include "plan/import/pipeline_layout.h"

#include <optional>
#include <string>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

constexpr std::size_t kLongest = 1 << 20;  // letters, repeated

/// Unrolls the repetitions.
class Unroller {
 public:
  explicit Unroller(std::string_view text) : text_(text) {}

  /// Nothing: not such a text, or too long.
  std::optional<std::string> read() {
    std::string all;
    while (at_ < text_.size()) {
      std::string piece;
      if (!take_piece(piece) || !repeat(piece) || all.size() + piece.size() > kLongest)
        return std::nullopt;
      all += piece;
    }
    return all;
  }

 private:
  /// A letter, or what stands in brackets.
  bool take_piece(std::string& piece) {
    if (text_[at_] != '(') {
      if (text_[at_] == ')' || text_[at_] == '*') return false;
      piece = std::string(1, text_[at_++]);
      return true;
    }
    const std::size_t end = text_.find(')', at_);
    if (end == text_.npos) return false;
    const std::string_view inner = text_.substr(at_ + 1, end - at_ - 1);
    if (inner.find('(') != inner.npos) return false;
    const auto unrolled = Unroller(inner).read();
    at_ = end + 1;
    if (unrolled) piece = *unrolled;
    return unrolled.has_value();
  }

  /// `*4` behind a piece.
  bool repeat(std::string& piece) {
    if (at_ >= text_.size() || text_[at_] != '*') return true;
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
    const auto times = base::parse_integer(text_.substr(at_ + 1, end - at_ - 1));
    if (!times || *times < 1 ||
        as_index(*times) > kLongest / std::max<std::size_t>(piece.size(), 1))
      return false;
    at_ = end;
    const std::string once = piece;
    for (long long i = 1; i < *times; ++i) piece += once;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

base::Result<std::vector<std::int64_t>> read_pipeline_layout(std::string_view text) {
  std::string plain;
  for (const char c : text)
    if (c != ',' && c != ' ') plain += c;
  const auto letters = Unroller(plain).read();
  if (!letters || letters->find_first_not_of("EtmL|") != letters->npos)
    return base::fail(kBadValue, "'{}' is no layout of E, t, L and |", text);
  if (letters->find('m') != letters->npos)
    return base::fail(kUnsupported, "layers that predict several tokens (m) are in no plan");
  if (!letters->starts_with('E') || letters->find('E', 1) != letters->npos)
    return base::fail(kBadValue, "'{}' has E once, and first", text);
  if (letters->find('L') != letters->size() - 1)
    return base::fail(kBadValue, "'{}' has L once, and last", text);
  std::vector<std::int64_t> stages(1, 0);
  for (const char c : *letters) {
    if (c == '|') stages.push_back(0);
    if (c == 't') ++stages.back();
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] == 0)
      return base::fail(kUnsupported, "stage {} of '{}' has no layers, and no plan has such", i,
                        text);
  }
  return stages;
}

}  // namespace orrery::plan
