// What writes a plan's JSON: keys in their order, the layers one a line.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace galvatron::detail {

/// Writes JSON in the order in which it is asked to; nothing but what a plan file needs.
class PlanWriter {
 public:
  void key(std::string_view name) {
    item();
    text_ += "\"" + std::string(name) + "\": ";
    after_key_ = true;
  }
  void value(std::string_view text) {
    plain(nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool truth) { plain(truth ? "true" : "false"); }
  void value(int n) { plain(std::to_string(n)); }
  void value(std::int64_t n) { plain(std::to_string(n)); }
  /// The shortest text that reads back as the same number; infinities and NaN become 0, which JSON can say.
  void value(double x) {
    std::array<char, 40> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::isfinite(x) ? x : 0.0).ptr;
    plain(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
  }
  template <class T>
  void field(std::string_view name, const T& v) {
    key(name);
    value(v);
  }
  /// An object or array; with `lines` each of its items begins a line.
  void open(char bracket, bool lines) {
    item();
    text_ += bracket;
    levels_.push_back({bracket == '{' ? '}' : ']', lines, true});
  }
  void close() {
    const Level level = levels_.back();
    levels_.pop_back();
    if (level.lines && !level.empty) new_line();
    text_ += level.bracket;
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  struct Level {
    char bracket;
    bool lines;
    bool empty;
  };
  void new_line() { text_ += "\n" + std::string(levels_.size(), ' '); }
  // Before an item: a comma, a line or a space.
  void item() {
    if (after_key_ || levels_.empty()) {
      after_key_ = false;
      return;
    }
    Level& level = levels_.back();
    if (!level.empty) text_ += level.lines ? "," : ", ";
    if (level.lines) new_line();
    level.empty = false;
  }
  void plain(std::string_view text) {
    item();
    text_ += text;
  }

  std::string text_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

}  // namespace galvatron::detail
