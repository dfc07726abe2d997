#include "topologies/picture/svg.h"

#include "base/numbers.h"
#include "topologies/picture/svg_canvas.h"
#include "topologies/picture/svg_fabric.h"
#include "topologies/picture/svg_host.h"

namespace orrery::topologies {

namespace {

constexpr double kGap = 18;

double draw_legend(Canvas& canvas, const Summary& summary, double top) {
  double y = top + 20;
  for (const Level& level : summary.levels) {
    canvas.line({kMargin, y - 4}, {kMargin + 34, y - 4}, canvas.colour(level.kind), 3);
    canvas.text({kMargin + 46, y},
                fmt::format("{}, {}: {} each way, {}; {} cable{}", level.kind, level.parts,
                            base::BytesPerSecond(real(level.bytes_per_second)), level.latency,
                            level.cables, level.cables == 1 ? "" : "s"),
                12, "start");
    y += 20;
  }
  std::string line = fmt::format("diameter {} hops", summary.diameter);
  if (summary.bisection_bytes_per_second > 0) {
    line +=
        fmt::format("; bisection {} ({})", base::BytesPerSecond(summary.bisection_bytes_per_second),
                    summary.bisection_method);
  }
  if (summary.oversubscription)
    line += fmt::format("; oversubscription {:.3g} : 1", *summary.oversubscription);
  canvas.text({kMargin, y + 6}, line, 12, "start", true);
  return y + 30 - top;
}

}  // namespace

std::string draw_svg(const Topology& t, const Summary& summary) {
  Canvas canvas;
  for (const Level& level : summary.levels) canvas.colour(level.kind);
  canvas.text({kMargin, 44}, t.name(), 22, "start", true);
  canvas.text({kMargin, 66},
              fmt::format("{} host{}, {} devices, {} each", t.hosts(), t.hosts() == 1 ? "" : "s",
                          t.device_count(), t.devices_per_host()),
              13, "start");
  double y = 84;
  const ClusterShape* cluster = t.cluster();
  if (cluster != nullptr && cluster->fabric) y += draw_fabric(canvas, t, y) + kGap;
  if (cluster == nullptr) {
    y +=
        draw_host(canvas, t, 0, count_of(t.vertices()), 0, count_of(t.links()), y, t.name()) + kGap;
  } else {
    for (const HostRun& run : cluster->runs) {
      const std::string title = fmt::format(
          "a host of {} ({})", t.device_model(run.first_host * t.devices_per_host()).name,
          run.hosts == 1 ? "one" : fmt::format("{} like it", run.hosts));
      y += draw_host(canvas, t, run.first_vertex, run.vertices, run.first_link, run.own_links, y,
                     title) +
           kGap;
    }
  }
  y += draw_legend(canvas, summary, y);
  return canvas.document(y + 10);
}

}  // namespace orrery::topologies
