// Byte-level BPE as Hugging Face's tokenizer.json has it, of GPT-2, Llama 3, Qwen and their like.
//
//   text ── added tokens ── NFC ── regular expressions ──▶ words ── bytes ── merges ──▶ tokens
//
// In the file a byte is a character that can be printed: those of ASCII and Latin-1 that can be stand for themselves,
// the others for U+0100 and up (Radford et al., 2019). Here tokens are bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <utf8proc.h>
#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/data/added_tokens.hpp>
#include <galvatron/data/merges.hpp>
#include <galvatron/data/splitter.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/data/utf8.hpp>

namespace galvatron::train {

namespace detail {

/// How GPT-2 cuts a text into words.
inline constexpr std::string_view gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The character that stands for each byte.
constexpr std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> out{};
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    out[byte] = prints ? byte : next++;
  }
  return out;
}

/// The bytes that a token of the file stands for; nothing where a character stands for no byte.
inline std::optional<std::string> bytes_of_characters(std::string_view text) {
  static const auto bytes = [] {
    std::array<int, 512> out{};
    out.fill(-1);
    const auto characters = byte_characters();
    for (int byte = 0; byte < 256; ++byte) out[characters[static_cast<std::size_t>(byte)]] = byte;
    return out;
  }();
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    const char32_t c = length == 0 ? bytes.size() : utf8_character(text, at, length);
    if (c >= bytes.size() || bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(bytes[c]);
    at += length;
  }
  return out;
}

/// The text in Unicode's normalization form C; `buffer` holds it where it differs.
inline std::string_view composed(std::string_view text, std::string& buffer) {
  const auto may_change = [](char c) { return static_cast<unsigned char>(c) >= 0xCC; };  // U+0300 and up
  if (std::ranges::none_of(text, may_change)) return text;
  utf8proc_uint8_t* out = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  if (size < 0) throw Failure(ErrorKind::internal, utf8proc_errmsg(size));
  buffer.assign(reinterpret_cast<const char*>(out), static_cast<std::size_t>(size));
  return buffer;
}

}  // namespace detail

class ByteLevelBpe final : public Tokenizer {
 public:
  using Tokenizer::encode;

  /// Reads the value of a tokenizer.json. Errors (usage): what the file says is not byte-level BPE, or has parts that
  /// change its tokens and are not known here; a merge of tokens that are not in the vocabulary.
  /// @param where  the file, for messages
  static Result<std::unique_ptr<ByteLevelBpe>> parse(const nlohmann::json& value, const std::string& where) {
    std::unique_ptr<ByteLevelBpe> out(new ByteLevelBpe);
    try {
      out->read(value, where);
    } catch (const Failure& failure) {
      return error_of(failure);
    }
    return out;
  }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    std::string valid;
    if (first_not_utf8(text) < text.size()) text = valid = valid_utf8(text);
    Words words(text.size() > 1024);
    added_raw_.split(
        text,
        [&](std::string_view piece) {
          if (!composes_) return encode_normal(piece, words, out);
          std::string buffer;
          const std::string_view normal = detail::composed(piece, buffer);
          if (normal.data() == piece.data()) return encode_normal(piece, words, out);
          Words own(normal.size() > 1024);  // its keys lie in the buffer
          encode_normal(normal, own, out);
        },
        [&](const AddedToken& token) { out.push_back(token.id); });
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens, bool special = true) const override {
    std::string out;
    for (const std::int32_t token : tokens)
      if (token >= 0 && token < vocabulary() && (special || !is_special_[static_cast<std::size_t>(token)]))
        out += bytes_[static_cast<std::size_t>(token)];
    return out;
  }
  [[nodiscard]] std::int64_t bytes_of(std::int32_t token) const override {
    if (token < 0 || token >= vocabulary() || is_special_[static_cast<std::size_t>(token)]) return 0;
    return std::ssize(bytes_[static_cast<std::size_t>(token)]);
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return std::ssize(bytes_); }

  /// The token with this content: an added one, or one of the vocabulary. -1: no token has it.
  [[nodiscard]] std::int32_t token_named(const std::string& content) const {
    const auto at = names_.find(content);
    return at == names_.end() ? -1 : at->second;
  }
  /// Sets the token that ends a text.
  void end_with(std::int32_t token) { end_token_ = token; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Names = std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>>;

  /// Tokens of the words of a text that have been seen in it.
  struct Words {
    static constexpr std::size_t most = 1 << 16;
    explicit Words(bool keep) : keeps(keep) {}
    bool keeps;
    std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> places;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> word;
  };

  ByteLevelBpe() = default;

  // ---- encoding

  void encode_normal(std::string_view text, Words& words, std::vector<std::int32_t>& out) const {
    added_normal_.split(
        text,
        [&](std::string_view piece) {
          if (!adds_space_ || piece.starts_with(' ')) return encode_words(piece, 0, words, out);
          const std::string with_space = " " + std::string(piece);
          Words own(with_space.size() > 1024);
          encode_words(with_space, 0, own, out);
        },
        [&](const AddedToken& token) { out.push_back(token.id); });
  }
  void encode_words(std::string_view text, std::size_t splitter, Words& words, std::vector<std::int32_t>& out) const {
    if (splitter == splitters_.size()) return encode_word(text, words, out);
    splitters_[splitter].for_each_piece(text,
                                        [&](std::string_view piece) { encode_words(piece, splitter + 1, words, out); });
  }
  void encode_word(std::string_view text, Words& words, std::vector<std::int32_t>& out) const {
    if (words.keeps)
      if (const auto seen = words.places.find(text); seen != words.places.end()) {
        const auto first = words.tokens.begin() + static_cast<std::ptrdiff_t>(seen->second.first);
        out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(seen->second.second));
        return;
      }
    merge(text, words.word);
    out.insert(out.end(), words.word.begin(), words.word.end());
    if (!words.keeps || words.places.size() >= Words::most) return;
    words.places.emplace(text, std::pair(words.tokens.size(), words.word.size()));
    words.tokens.insert(words.tokens.end(), words.word.begin(), words.word.end());
  }
  void merge(std::string_view text, std::vector<std::int32_t>& word) const {
    word.clear();
    if (ignores_merges_)
      if (const auto whole = whole_words_.find(text); whole != whole_words_.end()) {
        word.push_back(whole->second);
        return;
      }
    for (const char c : text)
      if (const std::int32_t token = byte_tokens_[static_cast<unsigned char>(c)]; token >= 0) word.push_back(token);
    merges_.apply(word);
  }

  // ---- reading. Throws Failure (usage).

  void read(const nlohmann::json& value, const std::string& where) {
    if (!value.is_object()) refuse(where, ": expected a JSON object, found ", JsonObject::describe(value));
    const auto part = [&](const char* key) -> const nlohmann::json& {
      static const nlohmann::json nothing;
      const auto at = value.find(key);
      return at == value.end() ? nothing : *at;
    };
    read_vocabulary(part("model"), where + ": \"model\"");
    read_added(part("added_tokens"), where + ": \"added_tokens\"");
    read_normalizer(part("normalizer"), where + ": \"normalizer\"");
    bool byte_level = false;
    read_splitters(part("pre_tokenizer"), where + ": \"pre_tokenizer\"", byte_level);
    if (!byte_level)
      refuse(where,
             ": \"pre_tokenizer\": only byte-level BPE is read, as GPT-2, Llama 3 and Qwen have it; give the "
             "model's tokenizer.model of sentencepiece where there is one");
    read_template(part("post_processor"), where + ": \"post_processor\"");
  }

  static std::string type_of(const nlohmann::json& value, const std::string& where) {
    const auto type = value.is_object() ? value.find("type") : value.end();
    if (!value.is_object() || type == value.end() || !type->is_string())
      refuse(where, ": expected an object with a \"type\", found ", JsonObject::describe(value));
    return type->get<std::string>();
  }
  static bool flag(const nlohmann::json& value, const char* key, bool otherwise, const std::string& where) {
    const auto at = value.find(key);
    if (at == value.end() || at->is_null()) return otherwise;
    if (!at->is_boolean()) refuse(where, ": \"", key, "\": expected true or false, found ", JsonObject::describe(*at));
    return at->get<bool>();
  }
  static std::string text(const nlohmann::json& value, const char* key, const std::string& where) {
    const auto at = value.find(key);
    if (at == value.end() || !at->is_string()) refuse(where, ": the text \"", key, "\" is missing");
    return at->get<std::string>();
  }
  static std::int32_t id(const nlohmann::json& value, const std::string& where) {
    constexpr std::int64_t most = 1 << 22;
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= most)
      refuse(where, ": expected a token from 0 to ", most - 1, ", found ", JsonObject::describe(value));
    return static_cast<std::int32_t>(value.get<std::int64_t>());
  }

  void put(std::int32_t token, std::string bytes, bool special) {
    const auto at = static_cast<std::size_t>(token);
    if (bytes_.size() <= at) {
      bytes_.resize(at + 1);
      is_special_.resize(at + 1);
    }
    bytes_[at] = std::move(bytes);
    is_special_[at] = special;
  }

  void read_vocabulary(const nlohmann::json& model, const std::string& where) {
    if (!model.is_object()) refuse(where, ": expected an object, found ", JsonObject::describe(model));
    if (model.contains("type") && type_of(model, where) != "BPE")
      refuse(where, ": the type ", JsonObject::describe(model.at("type")), " is not known, only \"BPE\"");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (const auto at = model.find(key); at != model.end() && !at->is_null() && *at != 0 && *at != "")
        refuse(where, ": \"", key, "\" is ", JsonObject::describe(*at), ", and must be null");
    if (flag(model, "byte_fallback", false, where))
      refuse(where, ": \"byte_fallback\" belongs to tokenizers of sentencepiece; give the model's tokenizer.model");
    ignores_merges_ = flag(model, "ignore_merges", false, where);
    const auto vocabulary = model.find("vocab");
    if (vocabulary == model.end() || !vocabulary->is_object() || vocabulary->empty())
      refuse(where, ": the object \"vocab\" is missing or empty");
    byte_tokens_.fill(-1);
    for (const auto& [name, number] : vocabulary->items()) {
      const std::int32_t token = id(number, where + ": \"vocab\"");
      names_.emplace(name, token);
      auto bytes = detail::bytes_of_characters(name);
      if (bytes && bytes->size() == 1) byte_tokens_[static_cast<unsigned char>((*bytes)[0])] = token;
      if (bytes && ignores_merges_) whole_words_.emplace(*bytes, token);
      put(token, bytes ? std::move(*bytes) : name, false);
    }
    if (const auto unknown = model.find("unk_token"); unknown != model.end() && unknown->is_string())
      if (const auto at = names_.find(unknown->get<std::string>()); at != names_.end())
        if (std::ranges::any_of(byte_tokens_, [](std::int32_t token) { return token < 0; }))
          refuse(where,
                 ": \"unk_token\" stands for bytes that the vocabulary does not have; give a tokenizer with all 256");
    read_merges(model, where);
  }
  void read_merges(const nlohmann::json& model, const std::string& where) {
    const auto list = model.find("merges");
    if (list == model.end() || !list->is_array()) refuse(where, ": the array \"merges\" is missing");
    merges_ = Merges(list->size());
    std::int32_t rank = 0;
    for (const nlohmann::json& merge : *list) {
      const std::string here = where + ": \"merges\"[" + std::to_string(rank) + "]";
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos) refuse(here, ": expected two tokens with a space between them");
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse(here, ": expected two tokens, found ", JsonObject::describe(merge));
      }
      const auto token = [&](const std::string& name) {
        const auto at = names_.find(name);
        if (at == names_.end())
          refuse(here, ": \"", galvatron::detail::one_line(name, 40),
                 "\" is not in the vocabulary; the file is damaged");
        return at->second;
      };
      const std::int32_t a = token(left), b = token(right);
      merges_.add(a, b, {rank++, token(left + right)});
    }
  }

  void read_added(const nlohmann::json& list, const std::string& where) {
    if (list.is_null()) return;
    if (!list.is_array()) refuse(where, ": expected an array, found ", JsonObject::describe(list));
    for (const nlohmann::json& item : list) {
      if (!item.is_object()) refuse(where, ": expected objects, found ", JsonObject::describe(item));
      AddedToken token{.id = id(item.value("id", nlohmann::json()), where),
                       .content = text(item, "content", where),
                       .special = flag(item, "special", false, where),
                       .strips_left = flag(item, "lstrip", false, where),
                       .strips_right = flag(item, "rstrip", false, where)};
      if (flag(item, "single_word", false, where))
        refuse(where, ": \"single_word\" is not known; the token \"", galvatron::detail::one_line(token.content, 40),
               "\" has it");
      put(token.id, token.content, token.special);
      names_.insert_or_assign(token.content, token.id);
      (flag(item, "normalized", !token.special, where) ? added_normal_ : added_raw_).add(std::move(token));
    }
  }

  void read_normalizer(const nlohmann::json& value, const std::string& where) {
    if (value.is_null()) return;
    const std::string type = type_of(value, where);
    if (type == "NFC") {
      composes_ = true;
    } else if (type == "Sequence") {
      for (const nlohmann::json& part : value.value("normalizers", nlohmann::json::array()))
        read_normalizer(part, where);
    } else {
      refuse(where, ": the type \"", galvatron::detail::one_line(type, 40), "\" is not known, only NFC is");
    }
  }

  void read_splitters(const nlohmann::json& value, const std::string& where, bool& byte_level) {
    if (value.is_null()) return;
    const std::string type = type_of(value, where);
    if (byte_level) refuse(where, ": \"ByteLevel\" has to be the last");
    if (type == "Sequence") {
      for (const nlohmann::json& part : value.value("pretokenizers", nlohmann::json::array()))
        read_splitters(part, where, byte_level);
    } else if (type == "ByteLevel") {
      byte_level = true;
      adds_space_ = flag(value, "add_prefix_space", true, where);
      if (adds_space_ && !splitters_.empty()) refuse(where, ": \"add_prefix_space\" behind other splits is not known");
      if (flag(value, "use_regex", true, where)) add_splitter(detail::gpt2_words, where);
    } else if (type == "Digits") {
      add_splitter(flag(value, "individual_digits", false, where) ? R"(\p{N})" : R"(\p{N}+)", where);
    } else if (type == "Split") {
      if (const std::string behavior = text(value, "behavior", where);
          behavior != "Isolated" || flag(value, "invert", false, where))
        refuse(where, ": a split of the behavior \"", galvatron::detail::one_line(behavior, 40),
               "\", or one that is inverted, is not known, only \"Isolated\" is");
      const auto pattern = value.find("pattern");
      if (pattern == value.end() || !pattern->is_object() || !pattern->contains("Regex") ||
          !pattern->at("Regex").is_string())
        refuse(where, ": expected a split with {\"pattern\": {\"Regex\": \"...\"}}");
      add_splitter(pattern->at("Regex").get_ref<const std::string&>(), where);
    } else {
      refuse(where, ": the type \"", galvatron::detail::one_line(type, 40),
             "\" is not known; known are ByteLevel, Split, Digits and Sequence");
    }
  }
  void add_splitter(std::string_view pattern, const std::string& where) {
    splitters_.push_back(value_or_throw(Splitter::compile(pattern, where)));
  }

  // What stands before and behind a prompt.
  void read_template(const nlohmann::json& value, const std::string& where) {
    if (value.is_null()) return;
    const std::string type = type_of(value, where);
    if (type == "Sequence") {
      for (const nlohmann::json& part : value.value("processors", nlohmann::json::array())) read_template(part, where);
      return;
    }
    if (type != "TemplateProcessing") return;  // others leave the tokens of a prompt as they are
    bool behind = false;
    for (const nlohmann::json& part : value.value("single", nlohmann::json::array())) {
      if (part.is_object() && part.contains("Sequence")) behind = true;
      if (!part.is_object() || !part.contains("SpecialToken")) continue;
      const std::string name = text(part.at("SpecialToken"), "id", where);
      const auto token = names_.find(name);
      if (token == names_.end())
        refuse(where, ": \"", galvatron::detail::one_line(name, 40), "\" is no token of the vocabulary");
      (behind ? prompt_end_ : prompt_begin_).push_back(token->second);
    }
  }

  Names names_;                     ///< as the file has them
  std::vector<std::string> bytes_;  ///< of each token
  std::vector<char> is_special_;    ///< of each token
  std::array<std::int32_t, 256> byte_tokens_{};
  Names whole_words_;  ///< by their bytes, where they come before merges
  bool ignores_merges_ = false;
  bool composes_ = false;
  bool adds_space_ = false;
  Merges merges_;
  AddedTokens added_raw_, added_normal_;  ///< found before normalization, and behind it
  std::vector<Splitter> splitters_;
};

}  // namespace galvatron::train
