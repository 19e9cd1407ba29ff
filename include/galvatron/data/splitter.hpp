// Splitter: cuts a text into the matches of a regular expression and what lies between them, with PCRE2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <galvatron/core/error.hpp>

namespace galvatron::train {

namespace detail {

/// The pattern in PCRE2's words: tokenizers mean Unicode's white space by \s, to which PCRE2 adds U+180E.
inline std::string with_white_space(std::string_view pattern) {
  constexpr std::string_view space = R"(\p{Z}\x{09}-\x{0D}\x{85})";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's')
        out += in_class ? std::string(space) : "[" + std::string(space) + "]";
      else if (next == 'S' && !in_class)
        out += "[^" + std::string(space) + "]";
      else
        out += {c, next};
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace detail

/// Immutable: threads may share one.
class Splitter {
 public:
  /// Errors (usage): not a regular expression that PCRE2 knows.
  /// @param where  opens the message
  static Result<Splitter> compile(std::string_view pattern, const std::string& where) {
    const std::string text = detail::with_white_space(pattern);
    int error = 0;
    PCRE2_SIZE place = 0;
    Splitter out;
    out.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr));
    if (out.code_ == nullptr) {
      PCRE2_UCHAR message[200];
      pcre2_get_error_message(error, message, sizeof message);
      return usage_error(where + ": the regular expression \"" + galvatron::detail::one_line(pattern, 80) +
                         "\" is not understood: " + reinterpret_cast<const char*>(message));
    }
    pcre2_jit_compile(out.code_.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower
    return out;
  }

  /// Calls f(piece) for the pieces of a text, which is UTF-8: matches, and what lies between them. Throws Failure
  /// (usage) when a match takes more work than PCRE2 allows.
  template <class F>
  void for_each_piece(std::string_view text, const F& f) const {
    const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    std::size_t done = 0;
    const auto give = [&](std::size_t end) {
      if (end <= done) return;
      f(text.substr(done, end - done));
      done = end;
    };
    for (std::size_t from = 0; from <= text.size();) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                    PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0)
        throw Failure(ErrorKind::usage, "the tokenizer's regular expression takes too much work at byte " +
                                            std::to_string(from) + " of a text (PCRE2 says " + std::to_string(found) +
                                            "); give the text in shorter documents");
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
      if (ends[1] < ends[0]) break;  // \K in a lookahead
      give(ends[0]);
      give(ends[1]);
      const bool moves = ends[1] > from;
      from = std::max<std::size_t>(from, ends[1]);
      if (moves) continue;
      do ++from;  // behind an empty match
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80);
    }
    give(text.size());
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  Splitter() = default;

  std::unique_ptr<pcre2_code, Free> code_;
};

}  // namespace galvatron::train
