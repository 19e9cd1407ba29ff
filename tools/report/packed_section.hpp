// The section of a report that shows a step of packed documents: ranks over time, a box for each group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/train/packed_step.hpp>

#include "../simulations.hpp"
#include "html.hpp"

namespace galvatron::simulate::report {

/// The ranks of a stage from top to bottom, seconds from left to right. What no box covers is idle.
inline std::string step_picture(const train::PackedStep& step) {
  constexpr double width = 1000;
  const double row = std::clamp(320.0 / step.ranks, 3.0, 22.0);
  const double height = row * step.ranks;
  constexpr double top = 18;
  const double scale = width / std::max(step.passes().value, 1e-12);
  std::string out;
  double left = 0;
  for (std::size_t m = 0; m < step.microbatches.size(); ++m) {
    const train::PackedMicroBatch& one = step.microbatches[m];
    const double wide = one.seconds.value * scale;
    out += text_of("<rect x=\"", number(left), "\" y=\"", number(top), "\" width=\"", number(wide), "\" height=\"",
                   number(height), "\" fill=\"var(--waiting)\"/>");
    if (wide > 90)
      out += text_of("<text x=\"", number(left + 3), "\" y=\"12\" fill=\"var(--soft)\">micro-batch ", m, "</text>");
    for (const train::PackedGroup& group : one.groups) {
      const double y = top + row * group.first_rank;
      const double high = row * group.ranks;
      const double own = group.seconds.value * scale;
      const std::string label = text_of(group.ranks, group.ranks == 1 ? " rank" : " ranks");
      out += text_of("<rect x=\"", number(left), "\" y=\"", number(y), "\" width=\"", number(own), "\" height=\"",
                     number(std::max(high - 0.8, 0.4 * high)), "\" fill=\"var(--",
                     group.ranks > 1 ? "forward" : "backward", ")\"><title>micro-batch ", m, ", ", label, " from ",
                     group.first_rank, ": ", group.documents, group.documents == 1 ? " document, " : " documents, ",
                     group.tokens, " tokens, ", group.padding, " of padding, ", format_seconds(group.seconds),
                     "</title></rect>");
      if (high >= 13 && own > 120)
        out +=
            text_of("<text x=\"", number(left + 5), "\" y=\"", number(y + high / 2 + 4), "\" fill=\"var(--onblock)\">",
                    label, ", ", format_count(static_cast<double>(group.tokens)), " tokens</text>");
    }
    left += wide;
    out += text_of("<path d=\"M", number(left), " 0V", number(top + height), "\" stroke=\"var(--text)\"/>");
  }
  return text_of(
      "<div class=\"scroll\"><svg viewBox=\"0 0 ", number(width + 1), " ", number(top + height),
      "\" role=\"img\" aria-label=\"Groups of a step\" font-size=\"11\" style=\"min-width:640px;width:100%\">", out,
      "</svg></div>\n");
}

/// Nothing for samples of one length.
inline std::string step_section(const Simulated& s) {
  if (!s.step) return {};
  const train::PackedStep& step = *s.step;
  Table table({"micro-batch", "groups", "ranks", "documents", "tokens", "padding", "fullest", "time", "idle"}, 2);
  for (std::size_t m = 0; m < step.microbatches.size(); ++m) {
    const train::PackedMicroBatch& one = step.microbatches[m];
    bool first = true;
    for (const train::detail::AlikeGroups& groups : train::detail::alike_groups(one)) {
      table.row({first ? std::to_string(m) : "", text_of(groups.count, " of ", groups.ranks),
                 train::detail::ranks_text(groups.runs), std::to_string(groups.documents),
                 format_count(static_cast<double>(groups.tokens)), format_count(static_cast<double>(groups.padding)),
                 percent(static_cast<double>(groups.fullest) / (step.capacity * groups.ranks)),
                 format_seconds(groups.longest), first ? percent(step.idle(one)) : ""});
      first = false;
    }
  }
  const auto rows = static_cast<double>(std::max<std::int64_t>(1, step.tokens() + step.padding()));
  return text_of("<h2>A step of documents</h2>\n<p>", step.documents(), " documents, ", escaped(s.step_words), ": ",
                 format_seconds(step.seconds()), " predicted, ", format_count(static_cast<double>(step.tokens())),
                 " tokens in ", step.microbatches.size(),
                 step.microbatches.size() == 1 ? " micro-batch" : " micro-batches", ", padding ",
                 percent(static_cast<double>(step.padding()) / rows), " of the rows, idle ", percent(step.idle()),
                 " of the ranks&#39; time. Each box is a group, as high as its ranks and as wide as its time",
                 step.stages > 1 ? "; every stage has these groups" : "", ".</p>\n",
                 legend({{"groups of several ranks", "forward"}, {"of one rank", "backward"}, {"idle", "waiting"}}) +
                     step_picture(step),
                 "<p>Groups of as many ranks share a row: the fullest of them as a share of what its ranks hold, and "
                 "the time of the slowest.</p>\n",
                 table.html());
}

}  // namespace galvatron::simulate::report
