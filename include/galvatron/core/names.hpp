// Suggestions for an unknown name of an option, a model or a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>

namespace galvatron {

namespace detail {

constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// ASCII letters in lower case.
inline std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// Insertions, deletions and substitutions between two words (Levenshtein 1966).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// The parts of a name in lower case: runs of letters, and numbers with the letters behind them. `Llama-3.1-8B` is
/// llama, 3.1, 8b; `gpt2-xl` is gpt, 2, xl.
inline std::vector<std::string> parts_of(std::string_view name) {
  const std::string text = lower_case(name);
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    if (is_letter(text[at])) {
      while (end < text.size() && is_letter(text[end])) ++end;
    } else if (is_digit(text[at])) {
      while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]) ||
                                   (text[end] == '.' && end + 1 < text.size() && is_digit(text[end + 1]))))
        ++end;
    } else {
      ++at;
      continue;
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

/// Both are words of at least three letters, and one begins with the other.
inline bool begin_alike(const std::string& a, const std::string& b) {
  return a.size() >= 3 && b.size() >= 3 && is_letter(a.front()) && (a.starts_with(b) || b.starts_with(a));
}

/// How well a word's parts are those of a name: 2 for each part of the name that is there, 1 for one that begins alike
/// (3 and 3.1, batch and batches), -1 for one that is missing.
inline int parts_in_common(const std::vector<std::string>& word, const std::vector<std::string>& name) {
  int score = 0;
  for (const std::string& part : name) {
    int best = -1;
    for (const std::string& other : word) {
      const bool version = is_digit(part.front()) && other.starts_with(part + ".");
      best = std::max(best, part == other ? 2 : version || begin_alike(part, other) ? 1 : -1);
    }
    score += best;
  }
  return score;
}

/// A word of letters in common: a size alone makes no name alike.
inline bool have_word_in_common(const std::vector<std::string>& word, const std::vector<std::string>& name) {
  return std::any_of(name.begin(), name.end(), [&](const std::string& part) {
    return std::any_of(word.begin(), word.end(), [&](const std::string& other) { return begin_alike(part, other); });
  });
}

}  // namespace detail

/// The names that `word` may mean, at most `count`, the likeliest first; none when nothing resembles it. Of these the
/// first kind that there is: the same name but for case and punctuation; names that begin with it, in their order; the
/// longest name that it begins with; names that begin alike and have most parts in common; names that have a part of
/// it; names with few other letters.
template <class = void>
std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& names,
                                       std::size_t count = 3) {
  const std::string lower = detail::lower_case(word.substr(0, 64));
  const std::vector<std::string> parts = detail::parts_of(lower);
  const std::string plain = std::accumulate(parts.begin(), parts.end(), std::string());
  struct Candidate {
    int kind;
    int score;  // less is better
    std::size_t distance;
    const std::string* name;
  };
  std::vector<Candidate> found;
  for (const std::string& name : names) {
    const std::vector<std::string> own = detail::parts_of(name);
    const std::string own_plain = std::accumulate(own.begin(), own.end(), std::string());
    const std::size_t distance = detail::edit_distance(lower, name);
    const int common = detail::parts_in_common(parts, own);
    const auto length = static_cast<int>(own_plain.size());
    if (plain == own_plain && !plain.empty())
      found.push_back({0, 0, distance, &name});
    else if (plain.size() >= 2 && own_plain.starts_with(plain))
      found.push_back({1, 0, 0, &name});
    else if (length >= 3 && plain.starts_with(own_plain))
      found.push_back({2, -length, distance, &name});
    else if (!parts.empty() && !own.empty() && parts.front() == own.front())
      found.push_back({3, -common, distance, &name});
    else if (detail::have_word_in_common(parts, own))
      found.push_back({4, -common, distance, &name});
    else if (distance <= std::max<std::size_t>(1, lower.size() / 3))
      found.push_back({5, static_cast<int>(distance), distance, &name});
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& c) { return std::tuple(c.kind, c.score, c.distance); });
  std::vector<std::string> nearest;
  for (const Candidate& candidate : found) {
    if (nearest.size() == count || candidate.kind != found.front().kind) break;
    if (candidate.kind < 5 && candidate.score != found.front().score) break;
    nearest.push_back(*candidate.name);
  }
  return nearest;
}
GALVATRON_IN_PLANNER(std::vector<std::string> nearest_names<>(std::string_view, const std::vector<std::string>&,
                                                              std::size_t))

}  // namespace galvatron
