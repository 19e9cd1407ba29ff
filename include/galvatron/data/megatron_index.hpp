// The index that Megatron-LM writes beside the tokens of a data set: NAME.idx for NAME.bin.
//
//   .idx   9 bytes     "MMIDIDX", 0, 0               .bin   tokens, nothing else
//          uint64      version, 1
//          uint8       type of the tokens: 1 uint8, 4 int32, 8 uint16
//          uint64      sequences s
//          uint64      document ends d
//          s x int32   tokens of each sequence
//          s x int64   byte of the .bin file where it begins
//          d x int64   first sequence of each document, and behind the last: d - 1 documents
//
// Little-endian; a document is one sequence, unless it was split into sentences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::train {

/// An index in memory that somebody else owns.
class MegatronIndex {
 public:
  static constexpr std::int64_t header_bytes = 34;

  /// The index in `bytes`, which `name` stands for in messages. Errors (usage): not such a file, another version or
  /// type of tokens, a size that is not the one that its header says.
  static Result<MegatronIndex> parse(std::span<const std::byte> bytes, std::string_view name) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    constexpr std::string_view magic("MMIDIDX\0\0", 9);
    if (size < header_bytes || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
      return usage_error(text_of(name, " is not an index of Megatron-LM: it does not begin with MMIDIDX and ",
                                 header_bytes, " bytes of header; remove it, or write it again"));
    MegatronIndex out;
    out.data_ = bytes.data();
    const auto version = load_unaligned<std::uint64_t>(bytes.data() + 9);
    if (version != 1)
      return usage_error(text_of(name, " is an index of version ", version, ", only version 1 is known"));
    const auto type = static_cast<int>(bytes[17]);
    out.width_ = type == 1 ? 1 : type == 4 ? 4 : type == 8 ? 2 : 0;
    if (out.width_ == 0)
      return usage_error(
          text_of(name, " has tokens of type ", type, "; known are 1 (uint8), 4 (int32) and 8 (uint16)"));
    const auto sequences = load_unaligned<std::uint64_t>(bytes.data() + 18);
    const auto ends = load_unaligned<std::uint64_t>(bytes.data() + 26);
    const auto rest = static_cast<std::uint64_t>(size - header_bytes);
    if (ends < 1 || sequences > rest / 12 || ends > rest / 8 || rest != 12 * sequences + 8 * ends)
      return usage_error(text_of(name, " is damaged: ", sequences, " sequences and ", ends,
                                 " ends of documents do not make the ", size, " bytes that it has; write it again"));
    out.sequences_ = static_cast<std::int64_t>(sequences);
    out.documents_ = static_cast<std::int64_t>(ends) - 1;
    return out;
  }

  /// Bytes of a token.
  [[nodiscard]] int width() const { return width_; }
  [[nodiscard]] std::int64_t documents() const { return documents_; }

  /// Calls f(document, first token, tokens) -> Result<void> for every document in turn, of a .bin file of so many
  /// tokens, until there is an error. Errors (usage): those of f; documents that overlap, are out of order, have gaps
  /// between their sequences or end behind the file.
  template <class F>
  Result<void> for_each_document(std::int64_t tokens, std::string_view name, const F& f) const {
    std::int64_t end = 0;
    for (std::int64_t d = 0; d < documents_; ++d) {
      const std::int64_t from = end_of(d), to = end_of(d + 1);
      if (from < 0 || from > to || to > sequences_)
        return damaged(name, d, text_of("it has the sequences ", from, " to ", to, " of ", sequences_));
      std::int64_t begin = end;
      for (std::int64_t s = from; s < to; ++s) {
        const std::int64_t length = load_unaligned<std::int32_t>(data_ + header_bytes + 4 * s);
        const auto byte = load_unaligned<std::int64_t>(data_ + header_bytes + 4 * sequences_ + 8 * s);
        if (s == from && byte >= end * width_) begin = end = byte / width_;
        if (length < 0 || byte != end * width_ || length > tokens - end)
          return damaged(name, d,
                         text_of("a sequence of ", length, " tokens begins at byte ", byte,
                                 "; what is before it ends at token ", end, " of ", tokens));
        end += length;
      }
      if (auto done = f(d, begin, end - begin); !done) return done;
    }
    return {};
  }

 private:
  [[nodiscard]] std::int64_t end_of(std::int64_t document) const {
    return load_unaligned<std::int64_t>(data_ + header_bytes + 12 * sequences_ + 8 * document);
  }
  static tl::unexpected<Error> damaged(std::string_view name, std::int64_t document, const std::string& what) {
    return usage_error(text_of(name, " is damaged: document ", document, ": ", what, "; write it again"));
  }

  const std::byte* data_ = nullptr;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;
  int width_ = 0;
};

}  // namespace galvatron::train
