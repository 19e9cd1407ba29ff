// galvatron evaluate: what a model makes of texts that it has not been trained on.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/data/json_lines.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/data/tokenized.hpp>
#include <galvatron/generate/scores.hpp>

#include "options.hpp"
#include "output.hpp"
#include "text_model.hpp"

namespace galvatron::tools {

namespace {

enum class ScoreKind { automatic, perplexity, choices, last_word };

struct EvaluateArguments {
  TextModelArguments text;
  std::vector<std::string> data;
  ScoreKind kind = ScoreKind::automatic;
  std::int64_t sequence = 0;  // 0: all that the model takes, at most 1,024
  std::int64_t rows = 0;      // 0: of one or several sequences
};

bool read(const Arguments& arguments, EvaluateArguments& a, Common& common) {
  Options options("evaluate", "Scores a model on files: perplexity, the choice between endings, or last words.");
  options.section("Model");
  add_text_model_options(options, a.text);
  options.section("Data");
  options.require(options.texts("--data", a.data, "FILE...", "texts, JSON lines, or files of tokens, .bin or .npy"));
  options.choice_of(
      "--score", a.kind,
      {{"perplexity", ScoreKind::perplexity}, {"choices", ScoreKind::choices}, {"last-word", ScoreKind::last_word}},
      "perplexity: of all tokens; choices: lines {\"ctx\", \"endings\", \"label\"} as HellaSwag has them; "
      "last-word: of each {\"text\"}, as LAMBADA (default: choices for files that have endings, else "
      "perplexity)");
  options.integer("--seq", a.sequence, 1, 1 << 24,
                  "tokens that are predicted together (default: what the model takes, at most 1,024)");
  options.integer("--rows", a.rows, 1, 1 << 24, "tokens of a pass (default: 2,048, or a sequence)");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples(
      "Examples:\n  galvatron evaluate --model gpt2-tiny --checkpoint saved --data held-out.txt\n"
      "  galvatron evaluate --checkpoint gpt2 --data hellaswag_val.jsonl --json");
  return options.parse(arguments, common);
}

// True for JSON lines whose first has endings.
bool has_endings(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return train::is_json_lines_name(path) &&
         text.substr(0, text.find('\n')).find("\"endings\"") != std::string_view::npos;
}

class Evaluation {
 public:
  Evaluation(const EvaluateArguments& a, const TextModel& text, Common& common)
      : a_(a), text_(text), common_(common), progress_(error_progress("evaluate", common)) {
    for (const std::string& path : a.data) {
      files_.push_back(value_or_throw(MappedFile::open(path)));
      all_bytes_ += static_cast<double>(files_.back().size());
    }
  }

  void run() {
    const auto wants_choices = [&](std::size_t i) {
      return a_.kind == ScoreKind::choices || a_.kind == ScoreKind::last_word ||
             (a_.kind == ScoreKind::automatic && has_endings(files_[i].bytes(), a_.data[i]));
    };
    const bool choices = wants_choices(0);
    for (std::size_t i = 1; i < files_.size(); ++i)
      if (wants_choices(i) != choices)
        refuse("--data: ", a_.data[0], choices ? " has endings to choose from, " : " is scored by perplexity, ",
               a_.data[i], choices ? " is scored by perplexity" : " has endings to choose from",
               "; give them in two commands");
    const std::int64_t positions = text_.model.positions();
    if (a_.sequence > positions)
      refuse("--seq ", a_.sequence, " is longer than the ", positions, " positions of ", text_.model.name);
    const std::int64_t most = choices ? 2048 : 1024;  // of tokens that are predicted together
    const std::int64_t window = a_.sequence > 0 ? a_.sequence : std::min(positions, most);
    const std::int64_t capacity = std::max(a_.rows > 0 ? a_.rows : 2048, window);
    text_.made({.samples = 1, .tokens = capacity}, common_, [&](generate::LanguageModel& model) {
      choices ? score_choices(model, capacity, window) : score_perplexity(model, capacity, window);
    });
  }

 private:
  void show(double bytes) { progress_.update((done_bytes_ + bytes) / all_bytes_, text_of(a_.data[file_])); }

  const train::Tokenizer& tokenizer(const std::string& path) const {
    if (!text_.tokenizer)
      value_or_throw(Result<void>(
          train::not_a_vocabulary_of_bytes(path, "the model " + text_.model.name, text_.model.vocabulary())));
    return *text_.tokenizer;
  }

  template <class F>
  void for_each_file(const F& f) {
    for (file_ = 0; file_ < files_.size(); ++file_) {
      const auto bytes = files_[file_].bytes();
      f(std::filesystem::path(a_.data[file_]),
        std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), bytes);
      done_bytes_ += static_cast<double>(bytes.size());
    }
  }

  void score_perplexity(generate::LanguageModel& model, std::int64_t rows, std::int64_t window) {
    generate::PerplexityScorer scorer(model, rows, window, text_.tokenizer.get());
    const std::int64_t vocabulary = text_.model.vocabulary();
    for_each_file([&](const std::filesystem::path& path, std::string_view text, std::span<const std::byte> bytes) {
      if (!train::is_text_name(path)) {
        const train::TokenView tokens = value_or_throw(train::parse_tokens(bytes, path));
        if (const std::int64_t at = tokens.first_outside(vocabulary); at < tokens.count)
          value_or_throw(Result<void>(train::outside_vocabulary(path.string(), tokens[at], at, vocabulary)));
        scorer.add(tokens.count, [&](std::int64_t i) {
          show(static_cast<double>(i * tokens.width));
          return tokens[i];
        });
        return;
      }
      const train::Tokenizer& own = tokenizer(path.string());
      value_or_throw(train::for_each_text(text, path, {}, [&](std::string_view document, std::int64_t) {
        const std::vector<std::int32_t> tokens = own.encode(document);
        scorer.add(std::ssize(tokens), [&](std::int64_t i) {
          show(static_cast<double>(document.data() - text.data()) * (train::is_json_lines_name(path) ? 0 : 1));
          return tokens[static_cast<std::size_t>(i)];
        });
        return Result<void>{};
      }));
    });
    const generate::Perplexity result = scorer.result();
    progress_.finish();
    if (result.tokens == 0) refuse("--data: there is no token to predict; give texts of two tokens or more");
    if (common_.json) {
      nlohmann::ordered_json out{{"loss", result.loss()}, {"perplexity", result.perplexity()}};
      out["bits_per_byte"] = nullptr;
      if (result.bytes > 0) out["bits_per_byte"] = result.bits_per_byte();
      out["accuracy"] = result.accuracy();
      out["tokens"] = result.tokens;
      if (result.bytes > 0) out["bytes"] = result.bytes;
      return print_json(out);
    }
    using galvatron::detail::formatted;
    print(row("loss", formatted("%.4f", result.loss()), " a token, of ", result.tokens) +
          row("perplexity", formatted("%.4g", result.perplexity())) +
          row("bits per byte", result.bytes > 0 ? formatted("%.4f", result.bits_per_byte())
                                                : std::string("not known without a tokenizer")) +
          row("accuracy", percent(result.accuracy()), " of the tokens were the likeliest"));
  }

  void score_choices(generate::LanguageModel& model, std::int64_t rows, std::int64_t positions) {
    const bool last_words = a_.kind == ScoreKind::last_word;
    generate::ChoiceScorer scorer(model, rows, positions, tokenizer(a_.data.front()));
    for_each_file([&](const std::filesystem::path& path, std::string_view text, std::span<const std::byte>) {
      train::JsonLineReader reader;
      value_or_throw(train::for_each_line(text, [&](std::string_view line, std::int64_t begin, std::int64_t number) {
        show(static_cast<double>(begin));
        const std::string where = text_of(path.string(), ", line ", number);
        const auto task = last_words ? reader.read(line, path.string(), number).and_then([&](std::string_view whole) {
          return generate::last_word_task(whole, where);
        })
                                     : generate::parse_choice_task(line, where);
        if (!task) return Result<void>(tl::unexpected<Error>(task.error()));
        return scorer.add(*task, where);
      }));
    });
    const generate::ChoiceScores result = scorer.result();
    progress_.finish();
    if (result.tasks == 0) refuse("--data: there is no line to score");
    const double accuracy = result.share(last_words ? result.exact : result.right);
    if (common_.json) {
      nlohmann::ordered_json out{{"loss", result.loss()},
                                 {"perplexity", result.perplexity()},
                                 {"bits_per_byte", result.bits_per_byte()},
                                 {"accuracy", accuracy}};
      if (!last_words) {
        out["accuracy_per_token"] = result.share(result.right_per_token);
        out["accuracy_per_character"] = result.share(result.right_per_character);
      }
      out["tasks"] = result.tasks;
      return print_json(out);
    }
    using galvatron::detail::formatted;
    print(row("accuracy", percent(accuracy), " of ", result.tasks, last_words ? " last words" : " tasks") +
          (last_words
               ? std::string()
               : row("by token", percent(result.share(result.right_per_token)), " by the mean over tokens, as llm.c") +
                     row("by character", percent(result.share(result.right_per_character)),
                         " by that over characters, acc_norm of lm-evaluation-harness")) +
          row("perplexity", formatted("%.4g", result.perplexity()),
              last_words ? " of a last word" : " of a right ending") +
          row("loss", formatted("%.4f", result.loss()), " a token, ", formatted("%.4f", result.bits_per_byte()),
              " bits per byte"));
  }

  const EvaluateArguments& a_;
  const TextModel& text_;
  Common& common_;
  Progress progress_;
  std::vector<MappedFile> files_;
  std::size_t file_ = 0;
  double all_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace

void run_evaluate(const Arguments& arguments, Common& common) {
  EvaluateArguments a;
  if (!read(arguments, a, common)) return;
  prepare_mapped_files(common);
  const TextModel text = text_model(a.text);
  if (const std::string why = generate::why_not_scoring(text.model); !why.empty()) refuse(why);
  Evaluation(a, text, common).run();
}

}  // namespace galvatron::tools
