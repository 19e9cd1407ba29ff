// HTML of a report: text made harmless, numbers made short, tables.
#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace galvatron::simulate::report
