#pragma once
/// Shapes of an SVG document, collected as text; positions in pixels.

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>

namespace orrery::topologies {

inline constexpr double kPageWidth = 1200;
inline constexpr double kMargin = 40;

struct Point {
  double x = 0, y = 0;
};

class Canvas {
 public:
  /// A colour per kind of link, in the order of first use.
  std::string_view colour(const std::string& kind);

  void line(Point a, Point b, std::string_view stroke, double width = 1.4);
  /// A curve from a to b, its middle pulled towards `sag`.
  void arc(Point a, Point b, Point sag, std::string_view stroke, double width = 1.4);
  void circle(Point centre, double radius, std::string_view fill, std::string_view stroke);
  /// A rounded box around `centre` with a label in it.
  void box(Point centre, double width, double height, std::string_view fill,
           std::string_view label);
  void panel(double x, double y, double width, double height, std::string_view title);
  void text(Point at, std::string_view label, double size = 12, std::string_view anchor = "middle",
            bool bold = false);

  /// Lines lie below boxes, whatever the order of calls.
  std::string document(double height) const;

 private:
  std::string panels_, lines_, boxes_;
  std::map<std::string, std::string_view> colours_;
};

}  // namespace orrery::topologies
