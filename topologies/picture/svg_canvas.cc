#include "topologies/picture/svg_canvas.h"

#include <algorithm>
#include <array>

#include "base/numbers.h"

namespace orrery::topologies {

namespace {

// Colour-blind safe (Okabe and Ito, 2008).
constexpr std::array<std::string_view, 7> kPalette = {"#009e73", "#0072b2", "#d55e00", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#666666"};

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

std::string_view Canvas::colour(const std::string& kind) {
  const std::string_view next = kPalette[colours_.size() % kPalette.size()];
  return colours_.try_emplace(kind, next).first->second;
}

void Canvas::line(Point a, Point b, std::string_view stroke, double width) {
  lines_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-width=\"{}\"/>\n",
      a.x, a.y, b.x, b.y, stroke, width);
}

void Canvas::arc(Point a, Point b, Point sag, std::string_view stroke, double width) {
  lines_ += fmt::format(
      "<path d=\"M{:.1f} {:.1f} Q{:.1f} {:.1f} {:.1f} {:.1f}\" fill=\"none\" stroke=\"{}\" "
      "stroke-width=\"{}\"/>\n",
      a.x, a.y, (a.x + b.x) / 2 + sag.x, (a.y + b.y) / 2 + sag.y, b.x, b.y, stroke, width);
}

void Canvas::circle(Point centre, double radius, std::string_view fill, std::string_view stroke) {
  boxes_ +=
      fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" stroke=\"{}\"/>\n",
                  centre.x, centre.y, radius, fill, stroke);
}

void Canvas::box(Point centre, double width, double height, std::string_view fill,
                 std::string_view label) {
  boxes_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"5\" fill=\"{}\" "
      "stroke=\"#333333\"/>\n",
      centre.x - width / 2, centre.y - height / 2, width, height, fill);
  // About 0.62 of the size per character fits.
  const double size = std::min(12.0, width / (0.64 * real(std::max<size_t>(label.size(), 1))));
  if (size >= 6) text({centre.x, centre.y + size * 0.36}, label, size);
}

void Canvas::panel(double x, double y, double width, double height, std::string_view title) {
  panels_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"8\" "
      "fill=\"#f7f7f5\" stroke=\"#cccccc\"/>\n",
      x, y, width, height);
  text({x + 14, y + 22}, title, 13, "start", true);
}

void Canvas::text(Point at, std::string_view label, double size, std::string_view anchor,
                  bool bold) {
  boxes_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.3g}\" text-anchor=\"{}\"{}>{}</text>\n", at.x,
      at.y, size, anchor, bold ? " font-weight=\"bold\"" : "", escape(label));
}

std::string Canvas::document(double height) const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
             "height=\"{1:.0f}\" "
             "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" fill=\"#222222\">\n"
             "<rect width=\"{0}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
             kPageWidth, height) +
         panels_ + lines_ + boxes_ + "</svg>\n";
}

}  // namespace orrery::topologies
