// Curves over the steps of a run as a picture: an SVG that is whole by itself, so that it may also stand in a file of
// its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>

#include "html.hpp"

namespace galvatron::simulate::report {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< (step, value), steps rising
};

/// A colour for each of several things, as far apart as there are things.
inline std::string colour_of(std::size_t thing, std::size_t things) {
  return text_of("hsl(", 360 * thing / std::max<std::size_t>(things, 1), ", 60%, ", thing % 2 == 0 ? 45 : 60, "%)");
}

/// @param id     of the picture in its page
/// @param title  what the values are
/// @param share  values are shares of 1, shown in percent from 0 to 100; else the axis ends at the largest value
inline std::string curves_svg(const std::string& id, const std::string& title, const std::vector<Curve>& curves,
                              bool share) {
  constexpr double left = 60, width = 560, top = 34, height = 240, right = 150;
  double steps = 1;
  double most = share ? 1 : 0;
  for (const Curve& curve : curves)
    for (const auto& [step, value] : curve.points) {
      steps = std::max(steps, step);
      if (std::isfinite(value)) most = std::max(most, value);
    }
  if (most <= 0) most = 1;
  const auto x = [&](double step) { return number(left + width * step / steps); };
  const auto y = [&](double value) { return number(top + height * (1 - value / most)); };
  std::string out = text_of(
      "<svg id=\"", id, "\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", number(left + width + right), " ",
      number(top + height + 44), "\" role=\"img\" aria-label=\"", escaped(title),
      "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  const auto text = [&](double at_x, const std::string& at_y, const char* anchor, const std::string& words) {
    out += text_of("<text x=\"", number(at_x), "\" y=\"", at_y, "\" text-anchor=\"", anchor, "\" fill=\"#333\">",
                   escaped(words), "</text>\n");
  };
  text(left, "20", "start", title);
  for (int i = 0; i <= 4; ++i) {
    const double value = most * i / 4;
    out += text_of("<line x1=\"", number(left), "\" x2=\"", number(left + width), "\" y1=\"", y(value), "\" y2=\"",
                   y(value), "\" stroke=\"#ddd\"/>\n");
    text(left - 6, number(top + height * (1 - i / 4.0) + 4), "end",
         share ? number(100 * value, 0) + " %" : number(value));
    text(left + width * i / 4, number(top + height + 18), "middle", number(std::round(steps * i / 4), 0));
  }
  text(left + width / 2, number(top + height + 36), "middle", "step");
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const std::string colour = colour_of(c, curves.size());
    out += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + colour + "\" points=\"";
    for (const auto& [step, value] : curves[c].points)
      if (std::isfinite(value)) out += x(step) + "," + y(value) + " ";
    out += "\"/>\n";
    const double at = top + 14 + 20 * static_cast<double>(c);
    out += text_of("<rect x=\"", number(left + width + 12), "\" y=\"", number(at - 9),
                   "\" width=\"10\" height=\"10\" fill=\"", colour, "\"/>\n");
    text(left + width + 28, number(at), "start", curves[c].name);
  }
  return out + "</svg>\n";
}

}  // namespace galvatron::simulate::report
