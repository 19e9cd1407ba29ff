// Files of tokens that other trainers read: made document by document, and told apart.
//
//   llm.c       .bin          header of 1,024 bytes (data/token_view.hpp), uint16 or uint32
//   nanogpt     .bin          uint16, nothing else
//   megatron    .bin, .idx    uint16 or int32, and the index that data/megatron_index.hpp draws
//   npy         .npy          an array of numpy of one dimension, uint16 or uint32
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/megatron_index.hpp>
#include <galvatron/data/token_view.hpp>

namespace galvatron::train {

enum class TokenFileKind : std::uint8_t { llm_c, nanogpt, megatron, npy };
constexpr const char* name_of(TokenFileKind kind) {
  return kind == TokenFileKind::llm_c     ? "llm.c"
         : kind == TokenFileKind::nanogpt ? "nanogpt"
         : kind == TokenFileKind::npy     ? "npy"
                                          : "megatron";
}

namespace detail {

template <class T>
void append_bytes(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

inline std::string llm_c_header(std::int64_t count, int width) {
  const TokenFormat& format = token_formats[width == 2 ? 0 : 1];
  std::string out;
  for (const std::int64_t number : {std::int64_t{format.magic}, std::int64_t{format.version}, count})
    append_bytes(out, static_cast<std::int32_t>(number));
  out.resize(token_header_bytes);
  return out;
}

/// Of so many bytes for any count.
inline std::string npy_header(std::int64_t count, int width) {
  std::string out("\x93NUMPY\x01\x00", 8);
  std::string text = text_of("{'descr': '<u", width, "', 'fortran_order': False, 'shape': (", count, ",), }");
  text.resize(117, ' ');
  append_bytes(out, static_cast<std::uint16_t>(text.size() + 1));
  return out + text + '\n';
}

}  // namespace detail

/// The tokens of a file of nanoGPT. Errors (usage): an odd number of bytes.
inline Result<TokenView> parse_nanogpt(std::span<const std::byte> bytes, std::string_view name) {
  if (bytes.size() % 2 != 0)
    return usage_error(
        text_of(name, " has ", bytes.size(), " bytes, which make no tokens of two bytes; write it again"));
  return TokenView{bytes.data(), std::ssize(bytes) / 2, 2};
}

/// The kind of a file of tokens by its name, its first bytes and what lies beside it; nothing where these do not tell,
/// as of nanoGPT's.
inline std::optional<TokenFileKind> kind_of_token_file(std::span<const std::byte> bytes,
                                                       const std::filesystem::path& path) {
  if (path.extension() == ".npy") return TokenFileKind::npy;
  std::filesystem::path index = path;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(index.replace_extension(".idx"), ignored)) return TokenFileKind::megatron;
  if (bytes.size() < 4) return std::nullopt;
  const auto magic = load_unaligned<std::int32_t>(bytes.data());
  return std::ranges::find(token_formats, magic, &TokenFormat::magic) != token_formats.end()
             ? std::optional(TokenFileKind::llm_c)
             : std::nullopt;
}

/// Writes tokens whole or not at all; Megatron-LM's index beside them.
class TokenFileWriter {
 public:
  /// Errors (usage): the file cannot be written; nanoGPT's for a vocabulary of more than 65,536.
  /// @param vocabulary  tokens are below
  static Result<TokenFileWriter> create(const std::filesystem::path& path, TokenFileKind kind,
                                        std::int64_t vocabulary) {
    const bool narrow = vocabulary <= std::int64_t{1} << 16;
    if (kind == TokenFileKind::nanogpt && !narrow)
      return usage_error(text_of("files of nanoGPT have tokens of two bytes, and a vocabulary of ", vocabulary,
                                 " needs four; choose llm.c, megatron or npy"));
    auto file = AtomicFile::create(path);
    if (!file) return tl::unexpected<Error>(std::move(file.error()));
    TokenFileWriter out(std::move(*file), path, kind, narrow ? 2 : 4);
    out.buffer_ = out.header();
    return out;
  }

  /// A document behind the others. Errors (usage): what the system says; more tokens than the format counts.
  Result<void> add(std::span<const std::int32_t> tokens) {
    tokens_ += std::ssize(tokens);
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if ((kind_ == TokenFileKind::llm_c ? tokens_ : std::ssize(tokens)) > most)
      return usage_error(text_of(
          path_.string(), ": files of ", name_of(kind_), " have at most ", most,
          kind_ == TokenFileKind::llm_c ? " tokens; write several, or npy" : " tokens in a document; split it"));
    for (const std::int32_t token : tokens) {
      largest_ = std::max(largest_, token);
      width_ == 2 ? detail::append_bytes(buffer_, static_cast<std::uint16_t>(token))
                  : detail::append_bytes(buffer_, token);
    }
    ++documents_;
    if (kind_ == TokenFileKind::megatron) lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
    return buffer_.size() < most_buffered ? Result<void>{} : flush();
  }
  /// The file is complete, and has its name.
  Result<void> finish() {
    auto done = flush();
    if (const std::string counted = header(); done && !counted.empty()) done = file_.write_again(0, counted);
    if (done && kind_ == TokenFileKind::megatron) done = write_index();
    return done ? file_.commit() : done;
  }

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t documents() const { return documents_; }
  [[nodiscard]] std::int32_t largest() const { return largest_; }

 private:
  static constexpr std::size_t most_buffered = 1 << 20;
  TokenFileWriter(AtomicFile file, std::filesystem::path path, TokenFileKind kind, int width)
      : file_(std::move(file)), path_(std::move(path)), kind_(kind), width_(width) {}

  [[nodiscard]] std::string header() const {
    if (kind_ == TokenFileKind::llm_c) return detail::llm_c_header(tokens_, width_);
    return kind_ == TokenFileKind::npy ? detail::npy_header(tokens_, width_) : "";
  }
  Result<void> flush() {
    auto done = file_.write(buffer_);
    buffer_.clear();
    return done;
  }
  Result<void> write_index() const {
    std::string out("MMIDIDX\0\0", 9);
    detail::append_bytes(out, std::uint64_t{1});
    detail::append_bytes(out, static_cast<std::uint8_t>(width_ == 2 ? 8 : 4));
    detail::append_bytes(out, static_cast<std::uint64_t>(lengths_.size()));
    detail::append_bytes(out, static_cast<std::uint64_t>(lengths_.size() + 1));
    for (const std::int32_t length : lengths_) detail::append_bytes(out, length);
    std::int64_t byte = 0;
    for (const std::int32_t length : lengths_) {
      detail::append_bytes(out, byte);
      byte += std::int64_t{length} * width_;
    }
    for (std::size_t i = 0; i <= lengths_.size(); ++i) detail::append_bytes(out, static_cast<std::int64_t>(i));
    std::filesystem::path index = path_;
    return write_file_atomically(index.replace_extension(".idx"), out);
  }

  AtomicFile file_;
  std::filesystem::path path_;
  TokenFileKind kind_;
  int width_;
  std::string buffer_;
  std::int64_t tokens_ = 0, documents_ = 0;
  std::int32_t largest_ = -1;
  std::vector<std::int32_t> lengths_;  ///< of documents, for an index
};

}  // namespace galvatron::train
