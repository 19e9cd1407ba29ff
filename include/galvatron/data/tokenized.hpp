// Texts and JSON lines as tokens of a tokenizer, document by document.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/team.hpp>
#include <galvatron/data/json_lines.hpp>
#include <galvatron/data/token_view.hpp>
#include <galvatron/data/tokenizer.hpp>

namespace galvatron::train {

/// Calls f(text, number from 1) -> Result<void> for the documents of a text, which are what lies between separators,
/// all of it without one; or of JSON lines, by the name of the file; until there is an error. Errors (usage): those of
/// f, and of JsonLineReader.
template <class F>
Result<void> for_each_text(std::string_view bytes, const std::filesystem::path& path, std::string_view separator,
                           const F& f) {
  if (is_json_lines_name(path)) {
    JsonLineReader reader;
    return for_each_line(bytes, [&](std::string_view line, std::int64_t, std::int64_t number) {
      return reader.read(line, path.string(), number).and_then([&](std::string_view text) { return f(text, number); });
    });
  }
  if (separator.empty()) return f(bytes, std::int64_t{1});
  std::int64_t number = 0;
  for (std::size_t from = 0; from < bytes.size();) {
    const std::size_t end = std::min(bytes.find(separator, from), bytes.size());
    if (auto done = f(bytes.substr(from, end - from), ++number); !done) return done;
    from = end + separator.size();
  }
  return {};
}

/// Calls f(tokens, bytes of the text) -> Result<void> for the documents of a text or of JSON lines, in their order;
/// each ends with the token `end` where that is not below 0. All threads of `team` tokenize. Errors (usage): as
/// for_each_text.
template <class F>
Result<void> for_each_tokenized(std::string_view bytes, const std::filesystem::path& path, std::string_view separator,
                                const Tokenizer& tokenizer, std::int64_t end, Team& team, const F& f) {
  constexpr std::size_t most_bytes = 1 << 22;  // texts that are tokenized at once
  struct Document {
    std::string copy;  // of a text that is gone when the next one is read
    std::string_view text;
    std::vector<std::int32_t> tokens;
  };
  const bool copies = is_json_lines_name(path);
  std::vector<Document> waiting;
  std::size_t waiting_bytes = 0;
  const auto flush = [&]() -> Result<void> {
    team.each(waiting.size(), [&](std::size_t i) {
      Document& document = waiting[i];
      tokenizer.encode(copies ? std::string_view(document.copy) : document.text, document.tokens);
      if (end >= 0) document.tokens.push_back(static_cast<std::int32_t>(end));
    });
    for (const Document& document : waiting) {
      const auto size = static_cast<std::int64_t>(copies ? document.copy.size() : document.text.size());
      if (auto done = f(std::span<const std::int32_t>(document.tokens), size); !done) return done;
    }
    waiting.clear();
    waiting_bytes = 0;
    return {};
  };
  auto done = for_each_text(bytes, path, separator, [&](std::string_view text, std::int64_t) -> Result<void> {
    Document& document = waiting.emplace_back();
    copies ? void(document.copy = text) : void(document.text = text);
    waiting_bytes += text.size();
    return waiting_bytes < most_bytes ? Result<void>{} : flush();
  });
  return done ? flush() : done;
}

/// Tokens of the documents of a file, in memory, as narrow as the vocabulary allows.
class TokenizedFile {
 public:
  /// Errors (usage): as for_each_tokenized.
  static Result<TokenizedFile> make(std::span<const std::byte> bytes, const std::filesystem::path& path,
                                    std::string_view separator, const Tokenizer& tokenizer, std::int64_t end) {
    TokenizedFile out;
    const std::int64_t vocabulary = std::max(tokenizer.vocabulary(), end + 1);
    out.width_ = vocabulary <= std::int64_t{1} << 16 ? 2 : 4;
    auto tokens = std::make_shared<std::vector<std::byte>>();
    Team team(usable_cores());
    auto done = for_each_tokenized({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, separator,
                                   tokenizer, end, team, [&](std::span<const std::int32_t> document, std::int64_t) {
                                     const std::size_t begin = tokens->size();
                                     const auto width = static_cast<std::size_t>(out.width_);
                                     tokens->resize(begin + document.size() * width);
                                     for (std::size_t i = 0; i < document.size();
                                          ++i)  // little-endian: the lower bytes come first
                                       std::memcpy(tokens->data() + begin + i * width, &document[i], width);
                                     out.ends_.push_back(static_cast<std::int64_t>(tokens->size() / width));
                                     return Result<void>{};
                                   });
    if (!done) return tl::unexpected<Error>(std::move(done.error()));
    out.tokens_ = std::move(tokens);
    return out;
  }

  /// The tokens of all documents. This, or a copy of it, must outlive them.
  [[nodiscard]] TokenView tokens() const { return {tokens_->data(), std::ssize(*tokens_) / width_, width_}; }
  /// Where each document ends.
  [[nodiscard]] const std::vector<std::int64_t>& ends() const { return ends_; }

 private:
  std::shared_ptr<const std::vector<std::byte>> tokens_;
  std::vector<std::int64_t> ends_;
  int width_ = 2;
};

}  // namespace galvatron::train
