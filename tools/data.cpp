// galvatron data: makes, converts, splits and inspects files of tokens.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/host.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/core/team.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/data/json_lines.hpp>
#include <galvatron/data/megatron_index.hpp>
#include <galvatron/data/token_files.hpp>
#include <galvatron/data/tokenized.hpp>
#include <galvatron/data/utf8.hpp>

#include "options.hpp"
#include "output.hpp"
#include "texts.hpp"

namespace galvatron::tools {

namespace {

using train::TokenFileKind;

struct DataArguments {
  std::vector<std::string> data;
  std::optional<TokenFileKind> from;
  std::string tokenizer;
  std::string separator;
  std::int64_t end_token = -2;  // -2: the tokenizer's
  std::string out;
  std::optional<TokenFileKind> to;
  std::string validation;
  double share = 0.1;
  std::int64_t seed = 1;
};

bool read(const Arguments& arguments, DataArguments& a, Common& common) {
  Options options("data",
                  "Makes files of tokens of texts and JSON lines, converts and splits them, and tells what is in them "
                  "(without --out).");
  options.section("Input");
  options.require(options.texts("--data", a.data, "FILE...", "texts, JSON lines, .npy, or .bin token files"));
  const std::vector<std::pair<std::string, std::optional<TokenFileKind>>> kinds{{"llm.c", TokenFileKind::llm_c},
                                                                                {"nanogpt", TokenFileKind::nanogpt},
                                                                                {"megatron", TokenFileKind::megatron},
                                                                                {"npy", TokenFileKind::npy}};
  options.choice_of("--from", a.from, kinds,
                    "what .bin files are (default: as they say; those of nanoGPT do not, and need it)");
  options.text("--tokenizer", a.tokenizer, "PATH",
               "of texts: a tokenizer.json, a model of sentencepiece, a folder with one, or `bytes`");
  options.text("--document-separator", a.separator, "TEXT", "what lies between the documents of a text");
  options.integer(
      "--end-token", a.end_token, -1, (std::int64_t{1} << 31) - 1,
      "ends each document of a text, and says where those of tokens end; -1: none (default: the tokenizer's)");
  options.section("Output");
  options.text("--out", a.out, "FILE", "write all tokens here");
  options.choice_of("--format", a.to, kinds,
                    "of the files that are written (default: npy if --out ends so, else llm.c)");
  options.text("--validation-out", a.validation, "FILE",
               "write a share here instead: documents drawn at random, or the end of a single text");
  options.number("--validation-share", a.share, 1e-9, 1, "how much of the documents (default: 0.1)");
  options.integer("--seed", a.seed, 0, std::int64_t{1} << 62, "of which documents these are (default: 1)");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples(
      "Examples:\n  galvatron data --data wiki.jsonl --tokenizer gpt2 --out train.bin \\\n      --validation-out "
      "val.bin\n"
      "  galvatron data --data train.bin --tokenizer gpt2");
  return options.parse(arguments, common);
}

// Documents of all files, in their order.
class DataReader {
 public:
  using Use = std::function<void(std::span<const std::int32_t> tokens, std::int64_t bytes)>;  // bytes: of a text

  DataReader(const DataArguments& a, Common& common) : a_(a), progress_(error_progress("data", common)) {
    if (a.tokenizer == "bytes")
      tokenizer_ = std::make_shared<train::ByteTokenizer>();
    else if (!a.tokenizer.empty())
      tokenizer_ = value_of("--tokenizer", opened_tokenizer(a.tokenizer));
    for (const std::string& path : a.data) {
      files_.push_back(value_or_throw(MappedFile::open(path)));
      all_bytes_ += static_cast<double>(files_.back().size());
      const std::filesystem::path name = path;
      std::optional<TokenFileKind> kind;
      if (name.extension() == ".bin" || name.extension() == ".npy") {
        kind = a.from ? a.from : train::kind_of_token_file(files_.back().bytes(), name);
        if (!kind)
          refuse(path,
                 " does not say what it is: it has neither the header of llm.c nor an index of Megatron-LM beside "
                 "it; give --from nanogpt if it is tokens of two bytes and nothing else");
      } else if (!tokenizer_) {
        refuse(path,
               " is a text, and which tokens it has depends on the model; give the model's tokenizer with "
               "--tokenizer, or --tokenizer bytes for a model of bytes");
      }
      kinds_.push_back(kind);
      width_ = std::max(width_, kind ? tokens_of(kinds_.size() - 1).width : 1);
    }
  }

  [[nodiscard]] const train::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // Of a file; nothing: a text.
  [[nodiscard]] std::optional<TokenFileKind> kind(std::size_t file) const { return kinds_[file]; }
  [[nodiscard]] std::int64_t end_token() const {
    return a_.end_token != -2 ? a_.end_token : tokenizer_ ? tokenizer_->end_token() : -1;
  }
  // All tokens are below.
  [[nodiscard]] std::int64_t vocabulary() const {
    const bool has_texts = std::ranges::any_of(kinds_, [](const auto& kind) { return !kind; });
    const std::int64_t of_texts = has_texts ? std::max(tokenizer_->vocabulary(), end_token() + 1) : 0;
    return std::max(of_texts, width_ == 4 ? std::int64_t{1} << 31 : width_ == 2 ? std::int64_t{1} << 16 : 256);
  }
  // Whether there is one document, a text that nothing cuts.
  [[nodiscard]] bool is_one_text() const {
    return a_.data.size() == 1 && !kinds_[0] && a_.separator.empty() && !train::is_json_lines_name(a_.data[0]);
  }

  // Tokens of a file that has them.
  [[nodiscard]] train::TokenView tokens_of(std::size_t file) const {
    const auto bytes = files_[file].bytes();
    const std::string& name = a_.data[file];
    switch (*kinds_[file]) {
      case TokenFileKind::llm_c:
        return value_or_throw(train::parse_token_file(bytes, name));
      case TokenFileKind::npy:
        return value_or_throw(train::parse_npy(bytes, name));
      case TokenFileKind::nanogpt:
        return value_or_throw(train::parse_nanogpt(bytes, name));
      case TokenFileKind::megatron:
        break;
    }
    const auto [index, index_name] = index_of(file);
    const int width = value_or_throw(train::MegatronIndex::parse(index.bytes(), index_name)).width();
    return {bytes.data(), std::ssize(bytes) / width, width};
  }

  void read(const Use& use) {
    Team team(usable_cores());
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const auto bytes = files_[i].bytes();
      double done = 0;
      const auto took = [&](double count) {
        done += count;
        progress_.update((before_ + done) / all_bytes_, a_.data[i]);
      };
      if (kinds_[i]) {
        read_tokens(i, [&](std::span<const std::int32_t> tokens) {
          use(tokens, 0);
          took(static_cast<double>(std::ssize(tokens) * tokens_of(i).width));
        });
      } else {
        value_or_throw(train::for_each_tokenized({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                                 a_.data[i], a_.separator, *tokenizer_, end_token(), team,
                                                 [&](std::span<const std::int32_t> tokens, std::int64_t size) {
                                                   use(tokens, size);
                                                   took(static_cast<double>(size));
                                                   return Result<void>{};
                                                 }));
      }
      before_ += static_cast<double>(bytes.size());
    }
    progress_.finish();
  }

 private:
  [[nodiscard]] std::pair<MappedFile, std::string> index_of(std::size_t file) const {
    std::filesystem::path index = a_.data[file];
    index.replace_extension(".idx");
    return {value_or_throw(MappedFile::open(index)), index.string()};
  }

  template <class F>
  void read_tokens(std::size_t file, const F& use) const {
    const train::TokenView all = tokens_of(file);
    std::vector<std::int32_t> document;
    const auto give = [&](std::int64_t begin, std::int64_t count) {
      document.resize(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i)
        document[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(all[begin + i]);
      use(std::span<const std::int32_t>(document));
    };
    if (kinds_[file] == TokenFileKind::megatron) {
      const auto [index, name] = index_of(file);
      value_or_throw(value_or_throw(train::MegatronIndex::parse(index.bytes(), name))
                         .for_each_document(all.count, name, [&](std::int64_t, std::int64_t begin, std::int64_t count) {
                           give(begin, count);
                           return Result<void>{};
                         }));
      return;
    }
    const std::int64_t end = end_token();
    std::int64_t begin = 0;
    for (std::int64_t i = 0; end >= 0 && i < all.count; ++i)
      if (all[i] == end) {
        give(begin, i + 1 - begin);
        begin = i + 1;
      }
    if (begin < all.count) give(begin, all.count - begin);
  }

  const DataArguments& a_;
  Progress progress_;
  std::shared_ptr<const train::Tokenizer> tokenizer_;
  std::vector<MappedFile> files_;
  std::vector<std::optional<TokenFileKind>> kinds_;
  int width_ = 1;
  double all_bytes_ = 0, before_ = 0;
};

void inspect(DataReader& reader, const DataArguments& a, const Common& common) {
  std::int64_t tokens = 0, documents = 0, bytes = 0, longest = 0;
  std::int32_t largest = -1;
  std::vector<std::int32_t> first;
  const train::Tokenizer* tokenizer = reader.tokenizer();
  reader.read([&](std::span<const std::int32_t> document, std::int64_t size) {
    ++documents;
    tokens += std::ssize(document);
    longest = std::max<std::int64_t>(longest, std::ssize(document));
    for (const std::int32_t token : document) {
      largest = std::max(largest, token);
      if (size == 0 && tokenizer != nullptr) bytes += tokenizer->bytes_of(token);
    }
    bytes += size;
    for (const std::int32_t token : document)
      if (first.size() < 16) first.push_back(token);
  });
  const auto format_of = [](const std::optional<TokenFileKind>& kind) { return kind ? train::name_of(*kind) : "text"; };
  const std::string text = tokenizer == nullptr ? "" : train::valid_utf8(tokenizer->decode(first));
  if (common.json) {
    nlohmann::ordered_json out{{"files", nlohmann::ordered_json::array()},
                               {"tokens", tokens},
                               {"documents", documents},
                               {"longest_document", longest},
                               {"largest_token", largest},
                               {"first_tokens", first}};
    for (std::size_t i = 0; i < a.data.size(); ++i)
      out["files"].push_back({{"path", a.data[i]}, {"format", format_of(reader.kind(i))}});
    if (bytes > 0) out["bytes"] = bytes;
    if (tokenizer != nullptr) out["first_text"] = text;
    return print_json(out);
  }
  std::string out;
  for (std::size_t i = 0; i < a.data.size(); ++i)
    out += row(i == 0 ? "files" : "", a.data[i], ", ", format_of(reader.kind(i)));
  out += row("tokens", tokens, ", below ", largest + 1) +
         row("documents", documents, ", the longest has ", longest, " tokens");
  if (bytes > 0)
    out += row("text", bytes, " bytes, ",
               galvatron::detail::formatted(
                   "%.3f", static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(tokens, 1))),
               " a token");
  out += row("begins", joined(first, " ")) +
         row("", text.empty() ? "" : "\"" + galvatron::detail::one_line(text, 60) + "\"");
  print(out);
}

void write(DataReader& reader, const DataArguments& a, const Common& common) {
  const auto kind_for = [&](const std::string& path) {
    return a.to.value_or(std::filesystem::path(path).extension() == ".npy" ? TokenFileKind::npy : TokenFileKind::llm_c);
  };
  const std::int64_t vocabulary = reader.vocabulary();
  auto train_file = value_of("--out", train::TokenFileWriter::create(a.out, kind_for(a.out), vocabulary));
  std::optional<train::TokenFileWriter> validation;
  if (!a.validation.empty())
    validation.emplace(
        value_of("--validation-out", train::TokenFileWriter::create(a.validation, kind_for(a.validation), vocabulary)));
  std::int64_t number = 0, bytes = 0;
  const double began = steady_seconds();
  reader.read([&](std::span<const std::int32_t> tokens, std::int64_t size) {
    bytes += size;
    if (validation && reader.is_one_text()) {
      const auto last = static_cast<std::size_t>(static_cast<double>(tokens.size()) * a.share);
      value_or_throw(train_file.add(tokens.first(tokens.size() - last)));
      value_or_throw(validation->add(tokens.last(last)));
      return;
    }
    constexpr std::uint64_t stream = 0x73706c6974000000U;
    const bool held_out = validation && uniform_of(bits_at(static_cast<std::uint64_t>(a.seed), stream,
                                                           static_cast<std::uint64_t>(number++))) < a.share;
    value_or_throw((held_out ? *validation : train_file).add(tokens));
  });
  const double seconds = steady_seconds() - began;
  value_or_throw(train_file.finish());
  if (validation) value_or_throw(validation->finish());
  const auto summary = [&](const std::string& path, const train::TokenFileWriter& file) {
    return nlohmann::ordered_json{{"path", path},
                                  {"format", train::name_of(kind_for(path))},
                                  {"tokens", file.tokens()},
                                  {"documents", file.documents()},
                                  {"largest_token", file.largest()}};
  };
  if (common.json) {
    nlohmann::ordered_json out{{"out", summary(a.out, train_file)}};
    if (validation) out["validation"] = summary(a.validation, *validation);
    if (bytes > 0) out["bytes"] = bytes;
    out["seconds"] = seconds;
    return print_json(out);
  }
  const auto line = [&](const std::string& label, const std::string& path, const train::TokenFileWriter& file) {
    return row(label, path, ", ", train::name_of(kind_for(path)), ": ", file.tokens(), " tokens in ", file.documents(),
               file.documents() == 1 ? " document" : " documents");
  };
  print(line("written", a.out, train_file) + (validation ? line("", a.validation, *validation) : "") +
        (bytes > 0 ? row("speed", format_count(static_cast<double>(bytes) / seconds), "B/s of text") : ""));
}

}  // namespace

void run_data(const Arguments& arguments, Common& common) {
  DataArguments a;
  if (!read(arguments, a, common)) return;
  prepare_mapped_files(common);
  if (a.out.empty() && (a.to || !a.validation.empty())) refuse("--format and --validation-out need --out FILE");
  std::vector<NamedFile> inputs;
  for (const std::string& path : a.data) inputs.push_back({"--data", path});
  require_files({{"--out", a.out}, {"--validation-out", a.validation}}, inputs);
  DataReader reader(a, common);
  a.out.empty() ? inspect(reader, a, common) : write(reader, a, common);
}

}  // namespace galvatron::tools
