// Documents of any length as training data, each trained as it is, read in a random order that everybody knows.
//
//   texts         a file is a document, or what lies between separators     a byte is a token
//   .jsonl        a line is {"text": "..."}                                 a byte of the text is a token
//   .bin          of llm.c: up to and with each end-of-text token
//   .bin, .idx    of Megatron-LM: as the index says
//
// Sample i of a run is document shuffled(i) of its epoch. Nobody keeps a state: a sample is a function of (files, seed,
// i), so that i alone says where a run is, whatever its ranks. Lengths are known once the files are open, in one pass
// that keeps a few bytes of each document (DocumentTable); tokens are read where they are asked for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/data_files.hpp>
#include <galvatron/data/document_table.hpp>
#include <galvatron/data/json_lines.hpp>
#include <galvatron/data/megatron_index.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/data/tokenized.hpp>
#include <galvatron/data/tokenizer.hpp>

namespace galvatron::train {

/// Tokens of the longest document that is read.
inline constexpr std::int64_t most_document_tokens = (std::int64_t{1} << 31) - 1;

struct DocumentOptions {
  std::int64_t vocabulary = 0;  ///< all tokens are below
  std::uint64_t seed = 0;       ///< of the order
  std::string separator{};      ///< between the documents of a text; empty: a text is one
  /// The token that ends a document: in .bin files without an index it is there, to texts and JSON lines it is added.
  /// Below 0: none.
  std::int64_t end_token = -1;
  /// Leaves out and counts documents of less than two tokens, in which nothing is to be predicted; else they are an
  /// error.
  bool skip_empty = false;
  /// Of texts and JSON lines, whose documents end with its end token unless end_token says another one. Null: the bytes
  /// of a text are its tokens.
  const Tokenizer* tokenizer = nullptr;
};

enum class DocumentFileKind : std::uint8_t { text, separated_text, json_lines, tokens };

/// The documents of a file in memory that somebody else owns.
struct DocumentFile {
  DocumentFileKind kind = DocumentFileKind::text;
  std::string name;
  TokenView tokens;                     ///< of the whole file
  std::optional<TokenizedFile> made{};  ///< that has them, where a tokenizer made them of a text
  DocumentTable
      table;  ///< in tokens of the file; of JSON lines, the byte where a line begins and the bytes of its text
  std::int64_t count = 0;          ///< documents
  std::int64_t skipped = 0;        ///< documents of less than two tokens
  std::int64_t first_skipped = 0;  ///< where the first of them begins
  std::int64_t longest = 0;        ///< tokens
  std::int64_t longest_document = 0;
  std::int64_t all_tokens = 0;  ///< of all documents
  std::int64_t added = 0;       ///< tokens that every document has beside those in the file: 0 or 1

  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(tokens.data), static_cast<std::size_t>(tokens.count)};
  }
  /// Where what begins at a place of the table is, for messages. Counts the lines before it, of JSON lines.
  [[nodiscard]] std::string place(std::int64_t begin) const {
    if (kind == DocumentFileKind::json_lines)
      return text_of(name, ", line ", 1 + std::ranges::count(text().substr(0, static_cast<std::size_t>(begin)), '\n'));
    if (kind == DocumentFileKind::tokens) return text_of(name, ", token ", begin);
    return kind == DocumentFileKind::text ? name : text_of(name, ", byte ", begin);
  }

  /// One more document behind the others, if it is long enough to predict a token. Errors (usage): it is too long, or
  /// too short while options.skip_empty is not set.
  Result<void> add(const DocumentTable::Entry& entry, const DocumentOptions& options) {
    const std::int64_t length = entry.length + added;
    if (length > most_document_tokens)
      return usage_error(text_of(place(entry.begin), ": the document has ", length, " tokens, and at most ",
                                 most_document_tokens, " are read as one; split it"));
    if (length < 2) {
      if (!options.skip_empty)
        return usage_error(text_of(place(entry.begin), ": the document ",
                                   entry.length == 0 ? "is empty" : "has one token and nothing to predict",
                                   "; remove it, or give --empty-documents skip"));
      if (skipped++ == 0) first_skipped = entry.begin;
      return {};
    }
    if (length > longest) {
      longest = length;
      longest_document = count;
    }
    all_tokens += length;
    table.add(entry);
    ++count;
    return {};
  }
};

/// Finds the documents of a text: what each separator ends, and what is behind the last one, if anything is.
inline Result<void> find_documents_of_text(DocumentFile& file, const DocumentOptions& options) {
  const std::string_view text = file.text();
  if (options.separator.empty()) return file.add({0, file.tokens.count}, options);
  const std::boyer_moore_horspool_searcher search(options.separator.begin(), options.separator.end());
  for (auto from = text.begin(); from != text.end();) {
    const auto [end, behind] = search(from, text.end());
    if (auto done = file.add({from - text.begin(), end - from}, options); !done) return done;
    from = behind;
  }
  return {};
}

/// Finds the documents of JSON lines. Errors (usage): those of JsonLineReader.
inline Result<void> find_documents_of_json_lines(DocumentFile& file, const DocumentOptions& options) {
  JsonLineReader reader;
  return for_each_line(file.text(), [&](std::string_view line, std::int64_t begin, std::int64_t number) {
    const auto text = reader.read(line, file.name, number);
    if (!text) return Result<void>(tl::unexpected<Error>(text.error()));
    return file.add({begin, std::ssize(*text)}, options);
  });
}

/// Finds the documents of tokens that options.end_token ends, in one pass which checks the tokens too. One that begins
/// the file, as llm.c writes it, ends no document. Errors (usage): no such token given, a token beyond the vocabulary.
inline Result<void> find_documents_by_end(DocumentFile& file, const DocumentOptions& options) {
  const TokenView& tokens = file.tokens;
  std::int64_t begin = 0;
  constexpr std::int64_t block = 16384;  // stays in a core's cache from the check to the search
  for (std::int64_t first = 0; first < tokens.count; first += block) {
    const TokenView part = tokens.slice(first, std::min(block, tokens.count - first));
    if (const std::int64_t at = part.first_outside(options.vocabulary); at < part.count)
      return outside_vocabulary(file.name, part[at], first + at, options.vocabulary);
    for (std::int64_t i = 0; i < part.count; ++i) {
      if (part[i] != static_cast<std::uint32_t>(options.end_token)) continue;
      const std::int64_t end = first + i + 1;
      if (end > 1)
        if (auto done = file.add({begin, end - begin}, options); !done) return done;
      begin = end;
    }
  }
  if (begin < tokens.count) return file.add({begin, tokens.count - begin}, options);
  return {};
}

/// Finds the documents that an index lists, and checks their tokens. Errors (usage): those of MegatronIndex; a token
/// beyond the vocabulary.
inline Result<void> find_documents_by_index(DocumentFile& file, const MegatronIndex& index,
                                            const std::string& index_name, const DocumentOptions& options) {
  auto done = index.for_each_document(
      file.tokens.count, index_name,
      [&](std::int64_t, std::int64_t begin, std::int64_t length) { return file.add({begin, length}, options); });
  if (!done) return done;
  if (const std::int64_t at = file.tokens.first_outside(options.vocabulary); at < file.tokens.count)
    return outside_vocabulary(file.name, file.tokens[at], at, options.vocabulary);
  return {};
}

/// Immutable after open(): ranks may share one.
class DocumentSource {
 public:
  /// Opens texts, JSON lines (.jsonl, .ndjson) and .bin token files. They are mapped, not loaded, and read through
  /// once. Errors (usage): no file, one that is missing, unreadable or damaged; a text or JSON lines for a vocabulary
  /// that is not bytes; a .bin file without an index when no token ends a document; a token beyond the vocabulary; a
  /// document of less than two tokens, unless those are skipped, or of more than most_document_tokens; no document.
  static Result<DocumentSource> open(std::span<const std::filesystem::path> paths, const DocumentOptions& options) {
    if (options.vocabulary < 1 || options.vocabulary > std::int64_t{1} << 31 || options.end_token >= options.vocabulary)
      return usage_error(
          text_of("documents need a vocabulary of 1 to 2^31 tokens with the one that ends a document, not ",
                  options.vocabulary, " and ", options.end_token));
    if (paths.empty()) return usage_error("no data files; name at least one text, .jsonl or .bin token file");
    auto files = DataFiles<DocumentFile>::open(
        paths, [&](auto bytes, const auto& path, const auto&) { return documents_of(bytes, path, options); });
    if (!files) return tl::unexpected<Error>(std::move(files.error()));
    DocumentSource source(paths.size(), options, std::move(*files));
    if (source.documents() == 0)
      return usage_error("the data have no document of two tokens or more; give at least one");
    return source;
  }

  /// Documents of all files together, which are the samples of an epoch.
  [[nodiscard]] std::int64_t documents() const { return files_.count(); }
  /// Tokens of all documents together.
  [[nodiscard]] std::int64_t tokens() const { return sum(&DocumentFile::all_tokens); }
  /// Documents of less than two tokens, which are no samples.
  [[nodiscard]] std::int64_t skipped() const { return sum(&DocumentFile::skipped); }
  /// One line about skipped documents; empty if there are none.
  [[nodiscard]] std::string notice() const {
    for (std::size_t f = 0; f < count_of_files_; ++f)
      if (const DocumentFile& file = files_.view(f); file.skipped > 0)
        return text_of("left out ", skipped(), skipped() == 1 ? " document" : " documents",
                       " of less than two tokens; the first is at ", file.place(file.first_skipped));
    return {};
  }

  /// Tokens of document `document` in [0, documents()): 2 .. most_document_tokens.
  [[nodiscard]] std::int64_t length(std::int64_t document) const {
    const auto [file, i] = files_.find(document);
    return files_.view(file).table[i].length + files_.view(file).added;
  }
  /// The first of the longest documents.
  [[nodiscard]] std::int64_t longest_document() const {
    std::int64_t before = 0, found = 0, most = 0;
    for (std::size_t f = 0; f < count_of_files_; ++f) {
      const DocumentFile& file = files_.view(f);
      if (file.longest > most) {
        most = file.longest;
        found = before + file.longest_document;
      }
      before += file.count;
    }
    return found;
  }
  /// Calls f(tokens) for all documents in turn: quicker than length().
  template <class F>
  void for_each_length(const F& f) const {
    for (std::size_t i = 0; i < count_of_files_; ++i) {
      const DocumentFile& file = files_.view(i);
      file.table.for_each(0, file.count, [&](const DocumentTable::Entry& entry) { f(entry.length + file.added); });
    }
  }
  /// Where a document is, for messages: "a.jsonl, line 17".
  [[nodiscard]] std::string place(std::int64_t document) const {
    const auto [file, i] = files_.find(document);
    return files_.view(file).place(files_.view(file).table[i].begin);
  }

  /// The document of sample `sample` >= 0 of the run, in [0, documents()).
  [[nodiscard]] std::int64_t document(std::int64_t sample) const {
    return shuffled(options_.seed, sample / documents(), sample % documents(), documents());
  }

  /// Calls f(token) for tokens [range.first, range.first + range.count) of a document.
  template <class F>
  void read(std::int64_t document, SequenceRange range, const F& f) const {
    const auto [number, i] = files_.find(document);
    const DocumentFile& file = files_.view(number);
    const auto entry = file.table[i];
    const std::int64_t end = range.first + range.count;
    if (range.first < 0 || range.count < 0 || end > entry.length + file.added)
      throw Failure(ErrorKind::internal, text_of("data: tokens ", range.first, " to ", end, " of a document of ",
                                                 entry.length + file.added));
    JsonLineReader reader;
    TokenView tokens;
    if (file.kind == DocumentFileKind::json_lines) {
      const std::string_view rest = file.text().substr(static_cast<std::size_t>(entry.begin));
      const auto text = reader.read(rest.substr(0, rest.find('\n')), file.name, 0);
      if (!text || std::ssize(*text) != entry.length)
        throw Failure(ErrorKind::usage, file.place(entry.begin) + " has changed since the file was opened");
      tokens = {reinterpret_cast<const std::byte*>(text->data()), entry.length, 1};
    } else {
      tokens = file.tokens.slice(entry.begin, entry.length);
    }
    for (std::int64_t t = range.first; t < std::min(end, entry.length); ++t) f(static_cast<std::int32_t>(tokens[t]));
    if (range.first < end && end > entry.length) f(static_cast<std::int32_t>(options_.end_token));
  }

  /// CRC-32C of the lengths of all documents, and of the first tokens of up to 256 documents that are spread evenly
  /// over the whole. It does not depend on the kind of the files, nor on how the documents are divided into them.
  [[nodiscard]] std::uint32_t checksum() const {
    constexpr std::int64_t most = 256, first_tokens = 1024;
    std::uint32_t crc = 0;
    const auto add = [&crc](std::int32_t value) { crc = crc32c(std::as_bytes(std::span(&value, 1)), crc); };
    for_each_length([&](std::int64_t tokens) { add(static_cast<std::int32_t>(tokens)); });
    const std::int64_t all = documents();
    for (std::int64_t i = 0; i < std::min(all, most); ++i) {
      const std::int64_t document = all <= most ? i : (all - 1) * i / (most - 1);
      read(document, {0, std::min(first_tokens, length(document))}, add);
    }
    return crc;
  }

 private:
  DocumentSource(std::size_t count_of_files, DocumentOptions options, DataFiles<DocumentFile> files)
      : count_of_files_(count_of_files), options_(std::move(options)), files_(std::move(files)) {}

  [[nodiscard]] std::int64_t sum(std::int64_t DocumentFile::* number) const {
    std::int64_t all = 0;
    for (std::size_t f = 0; f < count_of_files_; ++f) all += files_.view(f).*number;
    return all;
  }

  static Result<DocumentFile> documents_of(std::span<const std::byte> bytes, const std::filesystem::path& path,
                                           const DocumentOptions& options) {
    DocumentFile file;
    file.name = path.string();
    auto found =
        is_text_name(path) ? find_in_bytes(file, bytes, path, options) : find_in_tokens(file, bytes, path, options);
    if (!found) return tl::unexpected<Error>(std::move(found.error()));
    file.table.finish();
    return file;
  }
  static Result<void> find_in_bytes(DocumentFile& file, std::span<const std::byte> bytes,
                                    const std::filesystem::path& path, const DocumentOptions& options) {
    if (options.tokenizer != nullptr) return find_in_tokenized(file, bytes, path, options);
    if (!is_vocabulary_of_bytes(options.vocabulary))
      return not_a_vocabulary_of_bytes(path, "the model", options.vocabulary);
    file.tokens = {bytes.data(), std::ssize(bytes), 1};
    file.added = options.end_token < 0 ? 0 : 1;
    if (is_json_lines_name(path)) {
      file.kind = DocumentFileKind::json_lines;
      return find_documents_of_json_lines(file, options);
    }
    file.kind = options.separator.empty() ? DocumentFileKind::text : DocumentFileKind::separated_text;
    return find_documents_of_text(file, options);
  }
  static Result<void> find_in_tokenized(DocumentFile& file, std::span<const std::byte> bytes,
                                        const std::filesystem::path& path, const DocumentOptions& options) {
    file.kind = DocumentFileKind::tokens;
    const std::int64_t end = options.end_token < 0 ? options.tokenizer->end_token() : options.end_token;
    auto made = TokenizedFile::make(bytes, path, options.separator, *options.tokenizer, end);
    if (!made) return tl::unexpected<Error>(std::move(made.error()));
    file.tokens = made->tokens();
    if (const std::int64_t at = file.tokens.first_outside(options.vocabulary); at < file.tokens.count)
      return outside_vocabulary(file.name, file.tokens[at], at, options.vocabulary);
    std::int64_t begin = 0;
    for (const std::int64_t behind : made->ends()) {
      if (auto done = file.add({begin, behind - begin}, options); !done) return done;
      begin = behind;
    }
    file.made = std::move(*made);
    return {};
  }
  static Result<void> find_in_tokens(DocumentFile& file, std::span<const std::byte> bytes,
                                     const std::filesystem::path& path, const DocumentOptions& options) {
    file.kind = DocumentFileKind::tokens;
    std::filesystem::path beside = path;
    beside.replace_extension(".idx");
    std::error_code error;
    if (std::filesystem::exists(beside, error)) {
      const auto mapped = MappedFile::open(beside);
      if (!mapped) return tl::unexpected<Error>(mapped.error());
      const auto index = MegatronIndex::parse(mapped->bytes(), beside.string());
      if (!index) return tl::unexpected<Error>(index.error());
      file.tokens = {bytes.data(), std::ssize(bytes) / index->width(), index->width()};
      return find_documents_by_index(file, *index, beside.string(), options);
    }
    const auto tokens = parse_tokens(bytes, path);
    if (!tokens) {
      Error refused = tokens.error();
      refused.message += "; those of Megatron-LM need their index, " + beside.string();
      return tl::unexpected<Error>(std::move(refused));
    }
    if (options.end_token < 0)
      return usage_error(text_of(path.string(), ": which token ends a document? Give --end-token, or the index ",
                                 beside.string(), " of Megatron-LM"));
    file.tokens = *tokens;
    return find_documents_by_end(file, options);
  }

  std::size_t count_of_files_;
  DocumentOptions options_;
  DataFiles<DocumentFile> files_;
};

}  // namespace galvatron::train
