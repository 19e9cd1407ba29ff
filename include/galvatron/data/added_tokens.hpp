// Tokens of a tokenizer that are found in a text before anything else: special ones, and what users have added.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <galvatron/data/utf8.hpp>

namespace galvatron::train {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool strips_left = false, strips_right = false;  ///< white space around it belongs to it
};

class AddedTokens {
 public:
  void add(AddedToken token) {
    if (token.content.empty()) return;
    first_[static_cast<unsigned char>(token.content[0])] = true;
    if (std::ranges::find(lengths_, token.content.size()) == lengths_.end()) lengths_.push_back(token.content.size());
    std::ranges::sort(lengths_, std::greater<>());
    std::string content = token.content;
    tokens_.insert_or_assign(std::move(content), std::move(token));
  }
  [[nodiscard]] bool empty() const { return tokens_.empty(); }

  /// Calls text_piece(text) and token(added token) for what a text is, in turn: the leftmost token counts, of those at
  /// one place the longest.
  template <class TextPiece, class Token>
  void split(std::string_view text, const TextPiece& text_piece, const Token& token) const {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size() && !empty();) {
      const AddedToken* found = first_[static_cast<unsigned char>(text[at])] ? find(text.substr(at)) : nullptr;
      if (found == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at, end = at + found->content.size();
      if (found->strips_left) begin = std::max(done, space_begin(text.substr(0, at)));
      if (found->strips_right) end = space_end(text, end);
      if (begin > done) text_piece(text.substr(done, begin - done));
      token(*found);
      at = done = end;
    }
    if (done < text.size()) text_piece(text.substr(done));
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  [[nodiscard]] const AddedToken* find(std::string_view rest) const {
    for (const std::size_t length : lengths_) {
      if (length > rest.size()) continue;
      if (const auto at = tokens_.find(rest.substr(0, length)); at != tokens_.end()) return &at->second;
    }
    return nullptr;
  }
  static std::size_t space_end(std::string_view text, std::size_t at) {
    while (at < text.size()) {
      const std::size_t length = utf8_length(text, at);
      if (length == 0 || !is_white_space(utf8_character(text, at, length))) break;
      at += length;
    }
    return at;
  }
  static std::size_t space_begin(std::string_view text) {
    std::size_t end = text.size();
    while (end > 0) {
      std::size_t begin = end - 1;
      while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80) --begin;
      if (!is_white_space(utf8_character(text, begin, end - begin))) break;
      end = begin;
    }
    return end;
  }

  std::unordered_map<std::string, AddedToken, Hash, std::equal_to<>> tokens_;
  std::vector<std::size_t> lengths_;  ///< of all of them, the longest first
  std::array<bool, 256> first_{};
};

}  // namespace galvatron::train
