// Text in lines of a width.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace galvatron {

/// `text` in lines of at most `width` columns, broken at spaces; the second and later ones are indented. Spaces before
/// the first word stay.
inline std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::size_t at = std::min(text.find_first_not_of(' '), text.size());
  std::string out(at, ' ');
  std::size_t column = at;
  for (bool first = true; at < text.size(); first = false) {
    const std::string_view word = text.substr(at, text.find(' ', at) - at);
    if (!first && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    at += word.size() + 1;
  }
  return out;
}

}  // namespace galvatron
