#include "cli/html/explain_page.h"

#include "base/json.h"
#include "cli/html/partition_picture.h"
#include "cli/text/explain_summary.h"
#include "cli/text/partition_words.h"
#include "cli/text/plan_facts.h"
#include "cli/text/show.h"
#include "cli/text/show_explain.h"

namespace orrery::cli {

Json explanation_page(const search::Explanation& e, const CostModel& cost) {
  const ExplainedPlans plans(e);
  const Plan& plan = e.plan.plan;
  Json data = explanation_json(e, cost);
  data["title"] = fmt::format("{} on {} × {}: {} a step", plan.model, plan.world_size(),
                              cost.topology().device_model(0).name, show_time(e.plan.step_ps()));
  data["facts"] = plan_facts(plan);
  for (std::size_t i = 0; i < e.decisions.size(); ++i) {
    if (e.decisions[i].best)
      data["decisions"][i]["letter"] = plans.letter(e.decisions[i].best->simulated.plan);
  }
  for (std::size_t i = 0; i < e.what_ifs.size(); ++i) {
    if (e.what_ifs[i].best)
      data["sensitivity"]["changes"][i]["name"] = plans.name(e.what_ifs[i].best->plan);
  }
  data["words"] = describe(plan, cost.topology().device_count());
  data["summary"] = explanation_summary(e, plans);
  if (const plan::LayerPartition* partition = partition_of(plan))
    data["partition"] = {{"words", partition_text(plan)}, {"svg", draw_partitions(*partition)}};
  data["prices"] = describe_origin(cost);
  data["sure"] = trust_text(e, cost);
  data["others"] = json_list(plans.rivals(), [&](const search::Comparison* other) {
    Json row = comparison_json(*other);
    row["letter"] = plans.letter(other->simulated.plan);
    row["line"] = one_line(other->simulated.plan);
    return row;
  });
  return data;
}

}  // namespace orrery::cli
