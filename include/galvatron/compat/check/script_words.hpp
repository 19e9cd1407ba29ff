// The words of the commands in a launch script: enough of a shell to read what people start trainers with.
//
// Read are comments, quotes, continued lines, assignments of texts and arrays, ${NAME}, ${NAME:-otherwise}, ${NAME[@]}
// and $((arithmetic)). Branches and loops are not followed: all of their commands count, each once. What a program
// would print, $(...), and what is not assigned is left as it stands.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galvatron {

/// An option with the words behind it up to the next option: `--cp-comm-type p2p a2a`.
struct ScriptOption {
  std::string name;  ///< with its dashes
  std::vector<std::string> values;
};

namespace detail {

class ScriptReader {
 public:
  explicit ScriptReader(std::string_view text) : text_(text) {
    while (at_ < text_.size() && size_ < most_size) command();
  }

  /// Of commands, or of arrays and texts where no command has an option.
  [[nodiscard]] std::vector<std::string> words() const {
    if (has_option(commands_)) return commands_;
    std::vector<std::string> out;
    for (const std::string& name : order_)
      if (const auto at = variables_.find(name); at != variables_.end() && has_option(at->second))
        out.insert(out.end(), at->second.begin(), at->second.end());
    return out;
  }

 private:
  using Words = std::vector<std::string>;
  static constexpr std::size_t most_size = 1 << 20;  // of all words that are made

  // An option, alone or inside of a command in quotes.
  static bool has_option(const Words& words) {
    for (const std::string& word : words)
      for (std::size_t at = word.find("--"); at != std::string::npos; at = word.find("--", at + 1))
        if ((at == 0 || word[at - 1] == ' ') && at + 2 < word.size() &&
            std::isalpha(static_cast<unsigned char>(word[at + 2])) != 0)
          return true;
    return false;
  }
  static bool is_name(char c, bool first) {
    return c == '_' || std::isalpha(static_cast<unsigned char>(c)) != 0 ||
           (!first && std::isdigit(static_cast<unsigned char>(c)) != 0);
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  // Over blanks and continued lines; false at the end of a command.
  bool skip_blanks() {
    for (; at_ < text_.size(); ++at_) {
      if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
        at_ += peek(1) == '\n' ? 1 : 2;
        continue;
      }
      if (peek() == '#') {
        while (at_ < text_.size() && peek() != '\n') ++at_;
        return false;
      }
      if (peek() != ' ' && peek() != '\t' && peek() != '\r') break;
    }
    return at_ < text_.size() && std::string_view("\n;&|").find(peek()) == std::string_view::npos;
  }

  void command() {
    bool begins = true;
    while (skip_blanks()) {
      std::size_t end = at_;
      while (end < text_.size() && is_name(text_[end], end == at_)) ++end;
      const std::string name(text_.substr(at_, end - at_));
      const bool adds = text_.substr(end, 2) == "+=";
      if (begins && !name.empty() && (adds || text_.substr(end, 1) == "=")) {
        at_ = end + (adds ? 2 : 1);
        assign(name, adds);
        continue;
      }
      const std::size_t before = at_;
      Words made = word();
      if (at_ == before) ++at_;  // a bracket that is no part of a word
      begins = begins && made.size() == 1 &&
               (made[0] == "export" || made[0] == "local" || made[0] == "declare" || made[0] == "then" ||
                made[0] == "else" || made[0] == "do");
      if (!begins) add(commands_, std::move(made));
    }
    if (at_ < text_.size()) ++at_;  // what ends it
  }
  void add(Words& to, Words made) {
    for (std::string& each : made) {
      size_ += each.size() + 1;
      if (size_ >= most_size) return;
      to.push_back(std::move(each));
    }
  }

  void assign(const std::string& name, bool adds) {
    Words made;
    if (peek() == '(') {
      ++at_;
      while (at_ < text_.size() && size_ < most_size) {
        if (!skip_blanks()) {
          if (at_ >= text_.size()) break;
          ++at_;  // lines of an array
          continue;
        }
        if (peek() == ')') {
          ++at_;
          break;
        }
        const std::size_t before = at_;
        add(made, word());
        if (at_ == before) ++at_;
      }
    } else if (skip_value()) {
      // A text in quotes may have several words, for where it is used without quotes.
      add(made, word(true));
    }
    Words& value = variables_[name];
    if (!adds) value.clear();
    value.insert(value.end(), made.begin(), made.end());
    order_.push_back(name);
  }
  [[nodiscard]] bool skip_value() const {
    return at_ < text_.size() && std::string_view(" \t\r\n;").find(peek()) == std::string_view::npos;
  }

  // The words that one of the script becomes.
  // @param splits  in quotes too: the value of a variable
  Words word(bool splits = false) {
    Words out;
    std::string current;
    bool any = false;
    char quote = '\0';
    const auto end_word = [&] {
      if (any) out.push_back(std::move(current));
      current.clear();
      any = false;
    };
    const auto append = [&](const Words& words, bool apart) {
      for (std::size_t i = 0; i < words.size() && size_ < most_size; ++i) {
        size_ += words[i].size() + 1;
        if (i > 0 && apart) end_word();
        if (i > 0 && !apart) current += ' ';
        current += words[i];
        any = true;
      }
    };
    while (at_ < text_.size() && current.size() < most_size) {
      const char c = peek();
      if (quote == '\0' && std::string_view(" \t\r\n;&|()<>").find(c) != std::string_view::npos) break;
      if (c == '\\' && quote != '\'') {
        const bool line = peek(1) == '\n';
        if (!line && peek(1) != '\0') {
          current += peek(1);
          any = true;
        } else if (line && quote != '\0' && splits) {
          end_word();
        }
        at_ = std::min(at_ + 2, text_.size());
        continue;
      }
      if ((c == '"' || c == '\'') && (quote == '\0' || quote == c)) {
        quote = quote == '\0' ? c : '\0';
        any = any || !splits;
        ++at_;
        continue;
      }
      if (c == '$' && quote != '\'') {
        append(expansion(), quote == '\0' || splits || lists_);
        continue;
      }
      if (quote != '\0' && splits && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
        end_word();
      } else {
        current += c;
        any = true;
      }
      ++at_;
    }
    end_word();
    return out;
  }

  // Behind a `$`.
  Words expansion() {
    lists_ = false;
    ++at_;
    if (peek() == '(' && peek(1) == '(') {
      const std::size_t end = text_.find("))", at_ + 2);
      if (end != std::string_view::npos) {
        const std::string inside(text_.substr(at_ + 2, end - at_ - 2));
        at_ = end + 2;
        std::size_t place = 0;
        return {std::to_string(sum(inside, place, 0))};
      }
    }
    if (peek() == '(') {  // what a program prints
      int depth = 0;
      const std::size_t begin = at_;
      do {
        depth += peek() == '(' ? 1 : peek() == ')' ? -1 : 0;
        ++at_;
      } while (depth > 0 && at_ < text_.size());
      return {"$" + std::string(text_.substr(begin, at_ - begin))};
    }
    const bool braces = peek() == '{';
    if (braces) ++at_;
    std::size_t end = at_;
    while (end < text_.size() && is_name(text_[end], end == at_)) ++end;
    if (end == at_ && end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) ++end;
    const std::string name(text_.substr(at_, end - at_));
    at_ = end;
    std::string otherwise;
    if (braces) {
      lists_ = text_.substr(at_, 3) == "[@]" || text_.substr(at_, 3) == "[*]";
      const std::size_t close = text_.find('}', at_);
      if (close == std::string_view::npos) {
        at_ = text_.size();
        return {};
      }
      const std::string_view rest = text_.substr(at_, close - at_);
      if (rest.starts_with(":-") || rest.starts_with(":=")) otherwise = std::string(rest.substr(2));
      at_ = close + 1;
    }
    const auto known = variables_.find(name);
    if (known != variables_.end() && !known->second.empty()) return known->second;
    if (!otherwise.empty()) return {otherwise};
    if (name.empty()) return {"$"};
    return known != variables_.end() || lists_ ? Words{} : Words{"$" + name};
  }

  // Arithmetic of whole numbers, from left to right with the usual precedence; text that is no number counts as 0.
  [[nodiscard]] std::int64_t sum(const std::string& text, std::size_t& at, int depth) const {
    std::int64_t value = product(text, at, depth);
    for (;;) {
      skip_spaces(text, at);
      if (at >= text.size() || (text[at] != '+' && text[at] != '-')) return value;
      const bool adds = text[at++] == '+';
      const std::int64_t other = product(text, at, depth);
      std::int64_t result = 0;
      if (adds ? __builtin_add_overflow(value, other, &result) : __builtin_sub_overflow(value, other, &result))
        return 0;
      value = result;
    }
  }
  [[nodiscard]] std::int64_t product(const std::string& text, std::size_t& at, int depth) const {
    std::int64_t value = factor(text, at, depth);
    for (;;) {
      skip_spaces(text, at);
      if (at >= text.size() || (text[at] != '*' && text[at] != '/' && text[at] != '%')) return value;
      const char sign = text[at++];
      const std::int64_t other = factor(text, at, depth);
      std::int64_t result = 0;
      if (sign == '*') {
        if (__builtin_mul_overflow(value, other, &result)) return 0;
      } else {
        if (other <= 0) return 0;
        result = sign == '/' ? value / other : value % other;
      }
      value = result;
    }
  }
  [[nodiscard]] std::int64_t factor(const std::string& text, std::size_t& at, int depth) const {
    skip_spaces(text, at);
    if (at < text.size() && text[at] == '(' && depth < 50) {
      ++at;
      const std::int64_t value = sum(text, at, depth + 1);
      skip_spaces(text, at);
      if (at < text.size() && text[at] == ')') ++at;
      return value;
    }
    if (at < text.size() && text[at] == '$') ++at;
    const bool braces = at < text.size() && text[at] == '{';
    if (braces) ++at;
    std::size_t end = at;
    while (end < text.size() && is_name(text[end], false)) ++end;
    std::string found = text.substr(at, end - at);
    at = end + (braces && end < text.size() ? 1 : 0);
    if (found.empty() && at < text.size()) ++at;
    if (const auto known = variables_.find(found); known != variables_.end() && !known->second.empty())
      found = known->second.front();
    std::int64_t value = 0;
    std::from_chars(found.data(), found.data() + found.size(), value);
    return value;
  }
  static void skip_spaces(const std::string& text, std::size_t& at) {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) ++at;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t size_ = 0;
  bool lists_ = false;  // the last expansion was of all items of an array
  std::map<std::string, Words> variables_;
  std::vector<std::string> order_;  // of assignments
  Words commands_;
};

}  // namespace detail

/// The options of a launch script, or of a list of arguments, in their order.
inline std::vector<ScriptOption> script_options(std::string_view text) {
  std::vector<ScriptOption> out;
  // A word in quotes may be an option with its values, or a whole command.
  std::vector<std::string> words;
  for (std::string& word : detail::ScriptReader(text).words()) {
    if (word.find("--") == std::string::npos) {
      words.push_back(std::move(word));
      continue;
    }
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t end = std::min(word.find_first_of(" \t\n", at), word.size());
      if (end > at) words.push_back(word.substr(at, end - at));
      at = end + 1;
    }
  }
  for (const std::string& word : words) {
    if (word.starts_with("--") && word.size() > 2) {
      const std::size_t equals = word.find('=');
      out.push_back({word.substr(0, equals), {}});
      if (equals != std::string::npos) out.back().values.push_back(word.substr(equals + 1));
    } else if (!out.empty()) {
      out.back().values.push_back(word);
    }
  }
  return out;
}

}  // namespace galvatron
