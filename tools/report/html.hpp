// The HTML of a report: harmless text, short numbers, tables, and still pictures: memory over time, bars of seconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/simulate/memory.hpp>
#include <galvatron/simulate/simulation.hpp>

namespace galvatron::simulate::report {

/// Text that may stand between tags and in quoted attributes. Control characters become U+FFFD.
inline std::string escaped(std::string_view text) {
  constexpr std::string_view special = "&<>\"'";
  constexpr std::array names{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : text) {
    if (const std::size_t at = special.find(c); at != std::string_view::npos)
      out += names[at];
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
      out += "\xEF\xBF\xBD";
    else
      out += c;
  }
  return out;
}

/// A number with at most `digits` digits behind the point and none that say nothing.
inline std::string number(double x, int digits = 2) {
  std::array<char, 48> out{};
  std::snprintf(out.data(), out.size(), "%.*f", digits, x);
  std::string text = out.data();
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

/// With a space at which no line breaks.
inline std::string percent(double share) {
  return number(100 * share, share < 0.0995 && share > -0.0995 ? 1 : 0) + "\xC2\xA0%";
}

/// A table that scrolls sideways where it is wider than the page. Cells are HTML; the first column is text, the others
/// are numbers unless `words` says how many more are text. `style` is a class of the style sheet.
class Table {
 public:
  explicit Table(const std::vector<std::string>& heads, std::size_t words = 0, const std::string& style = {})
      : words_(words) {
    text_ = "<div class=\"scroll\"><table" + (style.empty() ? "" : " class=\"" + style + "\"") + "><thead>";
    row(heads, "th");
    text_ += "</thead><tbody>";
  }
  void row(const std::vector<std::string>& cells) { row(cells, "td"); }
  [[nodiscard]] std::string html() const { return text_ + "</tbody></table></div>\n"; }

 private:
  void row(const std::vector<std::string>& cells, const std::string& tag) {
    text_ += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i)
      text_ += "<" + tag + (i <= words_ ? " class=\"w\">" : ">") + cells[i] + "</" + tag + ">";
    text_ += "</tr>\n";
  }

  std::string text_;
  std::size_t words_;
};

/// A name and the colour that it has in the pictures: a variable of the style sheet. "left-out" is hatched.
using Colours = std::vector<std::pair<std::string, std::string>>;

inline std::string legend(const Colours& colours) {
  std::string out = "<div class=\"legend\">";
  for (const auto& [name, colour] : colours)
    out += (colour == "left-out" ? "<span><i class=\"hatched\"></i>"
                                 : "<span><i style=\"background:var(--" + colour + ")\"></i>") +
           escaped(name) + "</span>";
  return out + "</div>\n";
}

inline Colours activity_colours() {
  constexpr const char* words[activities] = {
      "compute",   "recomputation",           "communication in layers", "moves of activations", "gradient reduction",
      "optimizer", "waiting for other stages"};
  Colours out;
  for (std::size_t a = 0; a < activities; ++a) out.emplace_back(words[a], name_of(static_cast<Activity>(a)));
  return out;
}

/// Bars one below the other, each behind its name; their whole width is `whole`.
inline std::string bars(const std::vector<std::pair<std::string, StageSeconds>>& rows, Seconds whole) {
  const Colours colours = activity_colours();
  std::string out = "<div class=\"bars\">";
  for (const auto& [name, seconds] : rows) {
    out += "<span>" + escaped(name) + "</span><div class=\"bar\">";
    for (std::size_t a = 0; a < activities; ++a) {
      const Seconds part = seconds.by_activity[a];
      const double share = whole.value > 0 ? part / whole : 0;
      if (share > 0)
        out += text_of("<i style=\"width:", number(100 * share, 3), "%;background:var(--", colours[a].second,
                       ")\" title=\"", colours[a].first, ": ", format_seconds(part), ", ", percent(share), "\"></i>");
    }
    out += "</div>";
  }
  return out + "</div>\n";
}

/// The most in each of so many equal parts of the time, where there are more points than anybody can see.
inline std::vector<MemoryPoint> downsampled(const std::vector<MemoryPoint>& points, Seconds length) {
  constexpr std::size_t most_points = 600;
  if (points.size() <= most_points) return points;
  constexpr std::size_t columns = most_points / 2;
  std::vector<MemoryPoint> out(columns);
  MemoryPoint last;
  std::size_t next = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    const Seconds end = length * (static_cast<double>(c + 1) / columns);
    MemoryPoint most = last;
    for (; next < points.size() && points[next].at < end; ++next) {
      last = points[next];
      if (last.stash + last.workspace >= most.stash + most.workspace) most = last;
    }
    most.at = length * (static_cast<double>(c) / columns);
    out[c] = most;
  }
  return out;
}

/// Whether a memory chart reaches up to the budget: one that is far away would leave nothing to see.
inline bool shows_budget(const PlanStageCost& stage, Bytes budget) { return budget <= 4 * stage.memory.total(); }

/// Bytes in use over an iteration, on a scale up to the budget or the peak.
inline std::string memory_chart(const PlanStageCost& stage, const std::vector<MemoryPoint>& points, Seconds length,
                                Bytes budget) {
  constexpr int width = 300;
  constexpr int height = 96;
  const bool budgeted = shows_budget(stage, budget);
  const Bytes total = stage.memory.total();
  const double top = 1.06 * static_cast<double>(budgeted ? std::max(budget.count, total.count) : total.count);
  const auto y_of = [&](Bytes bytes) { return number(height * (1 - static_cast<double>(bytes.count) / top), 1); };
  const auto x_of = [&](Seconds at) { return number(width * (at / length), 1); };
  const std::vector<MemoryPoint> shown = downsampled(points, length);
  const auto area = [&](const char* colour, auto&& value) {
    std::string path;
    std::string last;
    for (const MemoryPoint& point : shown) {
      const std::string y = y_of(value(point));
      if (y == last) continue;
      path += "H" + x_of(point.at) + "V" + y;
      last = y;
    }
    return text_of("<path d=\"M0 ", height, path, "H", width, "V", height, "Z\" fill=\"var(--", colour, ")\"/>");
  };
  const Bytes kept = kept_bytes(stage);
  const auto line = [&](Bytes at, const char* colour, const char* dashes) {
    return text_of("<path d=\"M0 ", y_of(at), "H", width, "\" stroke=\"var(--", colour,
                   ")\" stroke-width=\"1.4\" fill=\"none\" stroke-dasharray=\"", dashes, "\"/>");
  };
  return text_of("<svg viewBox=\"0 0 ", width, " ", height, "\" role=\"img\">") +
         area("workspace", [&](const MemoryPoint& p) { return kept + p.stash + p.workspace; }) +
         area("stash", [&](const MemoryPoint& p) { return kept + p.stash; }) +
         area("kept", [&](const MemoryPoint&) { return kept; }) + line(total, "text", "2 3") +
         (budgeted ? line(budget, total <= budget ? "soft" : "bad", "7 4") : "") + "</svg>";
}

}  // namespace galvatron::simulate::report
