#include "cli/html/partition_picture.h"

#include <algorithm>

#include "base/numbers.h"
#include "cli/text/partition_words.h"
#include "topologies/picture/svg_canvas.h"

namespace orrery::cli {
namespace {

using plan::Dimension;
using plan::Partition;
using plan::Phase;
using enum plan::Dimension;

constexpr double kGridWidth = 320, kGridGap = 40, kCellHeight = 20, kTop = 40;

/// A tensor of a phase: rows and columns of its grid.
struct Drawn {
  std::string_view label;
  std::vector<Dimension> rows;
  Dimension columns;
  bool result = false;
};
std::vector<Drawn> tensors_of(Phase phase) {
  const Drawn input{"I", {kBatch, kTokens}, kIn}, output{"O", {kBatch, kTokens}, kOut},
      weight{"W", {kIn}, kOut};
  const auto named = [](Drawn d, std::string_view label, bool result) {
    d.label = label;
    d.result = result;
    return d;
  };
  switch (phase) {
    case Phase::kF: return {input, weight, named(output, "O", true)};
    case Phase::kB: return {named(output, "dO", false), weight, named(input, "dI", true)};
    default: return {input, named(output, "dO", false), named(weight, "dW", true)};
  }
}

/// Blocks of a tensor, each with its devices.
double draw_grid(topologies::Canvas& canvas, const Partition& p, const Drawn& tensor, Phase phase,
                 int step, double left, double top) {
  int rows = 1;
  for (const Dimension d : tensor.rows) rows *= p.slices(d);
  const int columns = p.slices(tensor.columns);
  std::vector<std::string> cells(as_index(rows * columns));
  for (int device = 0; device < p.devices(); ++device) {
    int row = 0;
    for (const Dimension d : tensor.rows) row = row * p.slices(d) + p.slice(d, phase, device, step);
    std::string& cell =
        cells[as_index(row * columns + p.slice(tensor.columns, phase, device, step))];
    cell += fmt::format("{}{}", cell.empty() ? "" : " ", device);
  }
  canvas.text({left + kGridWidth / 2, top + 14}, tensor.label, 13, "middle", true);
  const double width = kGridWidth / real(columns);
  for (int i = 0; i < rows * columns; ++i) {
    const std::string& devices = cells[as_index(i)];
    const std::string_view fill = devices.empty() ? "#ffffff"
                                  : tensor.result ? "#fdebc8"
                                                  : "#d8eaf6";
    canvas.box({left + width * (real(i % columns) + 0.5),
                top + 22 + kCellHeight * (real(i / columns) + 0.5)},
               width, kCellHeight, fill, devices);
  }
  return 22 + kCellHeight * real(rows);
}

double draw_step(topologies::Canvas& canvas, const Partition& p, Phase phase, int step,
                 double top) {
  canvas.text({topologies::kMargin, top + 34}, fmt::format("{} {}", to_string(phase), step + 1), 14,
              "start", true);
  double height = 0, left = topologies::kMargin + 60;
  for (const Drawn& tensor : tensors_of(phase)) {
    height = std::max(height, draw_grid(canvas, p, tensor, phase, step, left, top));
    left += kGridWidth + kGridGap;
  }
  std::string moves;
  for (const plan::Move& move : plan::moves(p, phase, step))
    moves += fmt::format("{}{}", moves.empty() ? "travelling meanwhile: " : ", ",
                         to_string(move.operand));
  if (!moves.empty())
    canvas.text({topologies::kMargin + 60, top + height + 14}, moves, 11, "start");
  return height + 28;
}

}  // namespace

std::string draw_partitions(const std::vector<DrawnOperator>& operators) {
  topologies::Canvas canvas;
  double top = kTop;
  for (const DrawnOperator& op : operators) {
    const Partition p(op.sequence);
    canvas.text({topologies::kMargin, top}, fmt::format("{}: {}", op.name, to_string(op.sequence)),
                18, "start", true);
    canvas.text({topologies::kMargin, top + 20}, words_of(op.sequence), 12, "start");
    top += 40;
    for (const Phase phase : {Phase::kF, Phase::kB, Phase::kG})
      for (int step = 0; step < p.steps(); ++step) top += draw_step(canvas, p, phase, step, top);
    top += 30;
  }
  return canvas.document(top);
}

std::string draw_partitions(const plan::LayerPartition& partition) {
  std::vector<DrawnOperator> drawn;
  for (const plan::LayerOperator op : kProducts)
    drawn.push_back({std::string(plan::partitioned_operators()[op]), partition[op]});
  return draw_partitions(drawn);
}

}  // namespace orrery::cli
