// Scores of a model on texts that it has not been trained on: perplexity, choices between endings, and last words.
//
//   perplexity   windows of S tokens; every token but the first of a text is predicted once, from those of its window
//   choices      {"ctx": "...", "endings": ["...", ...], "label": 2}    HellaSwag (Zellers et al., 2019)
//   last word    {"text": "... last"}                                   LAMBADA (Paperno et al., 2016)
//
// A context and what follows it are tokenized together, and the tokens behind those of the context alone are scored, as
// lm-evaluation-harness does it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numbers>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/data/json_lines.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/data/utf8.hpp>
#include <galvatron/generate/language_model.hpp>

namespace galvatron::generate {

/// What is known of the predictions of texts.
struct Perplexity {
  double loss_sum = 0;  ///< in nats
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;  ///< of the texts of these tokens; 0: not known
  std::int64_t best = 0;   ///< predictions that were the likeliest token

  [[nodiscard]] double loss() const { return loss_sum / static_cast<double>(tokens); }
  [[nodiscard]] double perplexity() const { return std::exp(loss()); }
  [[nodiscard]] double bits_per_byte() const { return loss_sum / (std::numbers::ln2 * static_cast<double>(bytes)); }
  [[nodiscard]] double accuracy() const { return static_cast<double>(best) / static_cast<double>(tokens); }
};

/// Scores texts in passes that are as full as they can be, in the order in which they are given.
class ScoreQueue {
 public:
  using Use = std::function<void(std::span<const std::int32_t> text, std::span<const TokenScore> scores)>;

  /// @param rows  of a pass: Capacity::tokens of the model, which outlives this
  /// @param use   gets the scores of every token but the first of a text
  ScoreQueue(LanguageModel& model, std::int64_t rows, Use use) : model_(model), rows_(rows), use_(std::move(use)) {}

  /// A text of at most rows + 1 tokens.
  void add(std::vector<std::int32_t> text) {
    const auto own = std::max<std::int64_t>(std::ssize(text) - 1, 0);
    if (waiting_rows_ + own > rows_) flush();
    waiting_rows_ += own;
    waiting_.push_back(std::move(text));
  }
  void flush() {
    const std::vector<std::span<const std::int32_t>> texts(waiting_.begin(), waiting_.end());
    const auto scores = model_.score(texts);
    for (std::size_t i = 0; i < texts.size(); ++i) use_(texts[i], scores[i]);
    waiting_.clear();
    waiting_rows_ = 0;
  }

 private:
  LanguageModel& model_;
  std::int64_t rows_;
  Use use_;
  std::vector<std::vector<std::int32_t>> waiting_;
  std::int64_t waiting_rows_ = 0;
};

/// Adds what a model says of texts, window by window.
class PerplexityScorer {
 public:
  /// @param window     S: tokens that are predicted together
  /// @param tokenizer  tells bytes; null: they are not known
  PerplexityScorer(LanguageModel& model, std::int64_t rows, std::int64_t window, const train::Tokenizer* tokenizer)
      : window_(window), queue_(model, rows, [this, tokenizer](auto text, auto scores) {
          for (std::size_t i = 0; i < scores.size(); ++i) {
            result_.loss_sum += scores[i].loss;
            result_.best += scores[i].is_best ? 1 : 0;
            if (tokenizer != nullptr) result_.bytes += tokenizer->bytes_of(text[i + 1]);
          }
          result_.tokens += std::ssize(scores);
        }) {}
  PerplexityScorer(const PerplexityScorer&) = delete;
  PerplexityScorer& operator=(const PerplexityScorer&) = delete;

  /// @param token  token(i) of a text of `count` tokens
  template <class Token>
  void add(std::int64_t count, const Token& token) {
    for (std::int64_t begin = 0; begin + 1 < count; begin += window_) {
      std::vector<std::int32_t> text;
      for (std::int64_t i = begin; i < std::min(begin + window_ + 1, count); ++i)
        text.push_back(static_cast<std::int32_t>(token(i)));
      queue_.add(std::move(text));
    }
  }
  /// Of all texts.
  Perplexity result() {
    queue_.flush();
    return result_;
  }

 private:
  std::int64_t window_;
  Perplexity result_;
  ScoreQueue queue_;
};

/// A context, and what may follow it.
struct ChoiceTask {
  std::string context;
  std::vector<std::string> endings;  ///< each with the space that is before it
  std::int64_t label = 0;            ///< the right one
};

/// Errors (usage): not an object with "ctx", at least two "endings" and the number of one of them as "label".
inline Result<ChoiceTask> parse_choice_task(std::string_view line, const std::string& where) {
  const auto value = parse_json(line, where);
  if (!value) return tl::unexpected<Error>(value.error());
  ChoiceTask out;
  JsonObject fields(*value, where);
  out.context = fields.required<std::string>("ctx");
  for (const nlohmann::json& ending : fields.required_array("endings")) {
    if (!ending.is_string())
      return usage_error(where + ": \"endings\": expected texts, found " + JsonObject::describe(ending));
    out.endings.push_back(" " + ending.get<std::string>());
  }
  if (const nlohmann::json* label = fields.any("label"); label != nullptr && label->is_string())
    out.label = label->get_ref<const std::string&>().size() == 1 ? label->get_ref<const std::string&>()[0] - '0' : -1;
  else
    out.label = fields.required<std::int64_t>("label");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (out.endings.size() < 2 || out.label < 0 || out.label >= std::ssize(out.endings))
    return usage_error(text_of(where, ": the label is ", out.label, " of ", out.endings.size(),
                               " endings; give two or more, and the number of the right one from 0 on"));
  return out;
}

/// A text without its last word, and that word with the space before it as the only ending. Errors (usage): a text of
/// less than two words.
inline Result<ChoiceTask> last_word_task(std::string_view text, const std::string& where) {
  const std::size_t space = text.rfind(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text.size())
    return usage_error(where + ": the text has no last word behind a space");
  return ChoiceTask{std::string(text.substr(0, space)), {std::string(text.substr(space))}, 0};
}

/// Results of tasks with endings.
struct ChoiceScores {
  std::int64_t tasks = 0;
  std::int64_t right = 0;                ///< by the probability of all of an ending
  std::int64_t right_per_token = 0;      ///< by the mean over its tokens, as llm.c scores HellaSwag
  std::int64_t right_per_character = 0;  ///< by that of a character, acc_norm of lm-evaluation-harness
  std::int64_t exact = 0;                ///< right endings whose tokens are all the likeliest
  double loss_sum = 0;                   ///< of right endings, in nats
  std::int64_t tokens = 0;               ///< of right endings
  std::int64_t bytes = 0;                ///< of right endings

  [[nodiscard]] double share(std::int64_t count) const {
    return static_cast<double>(count) / static_cast<double>(tasks);
  }
  /// Of a token of the right endings, in nats.
  [[nodiscard]] double loss() const { return loss_sum / static_cast<double>(tokens); }
  [[nodiscard]] double bits_per_byte() const { return loss_sum / (std::numbers::ln2 * static_cast<double>(bytes)); }
  /// exp of the mean loss of a right ending, as LAMBADA's perplexity of words.
  [[nodiscard]] double perplexity() const { return std::exp(loss_sum / static_cast<double>(tasks)); }
};

class ChoiceScorer {
 public:
  /// @param positions  tokens that the model predicts from at most: of longer texts the last ones count
  ChoiceScorer(LanguageModel& model, std::int64_t rows, std::int64_t positions, const train::Tokenizer& tokenizer)
      : positions_(std::min(positions, rows)),
        tokenizer_(tokenizer),
        queue_(model, rows, [this](auto, auto scores) { take(scores); }) {}
  ChoiceScorer(const ChoiceScorer&) = delete;
  ChoiceScorer& operator=(const ChoiceScorer&) = delete;

  /// Errors (usage): an ending without a token.
  Result<void> add(const ChoiceTask& task, const std::string& where) {
    for (std::size_t i = 0; i < task.endings.size(); ++i) {
      const std::vector<std::int32_t> context = tokenizer_.encode(task.context);
      std::vector<std::int32_t> whole = tokenizer_.encode(task.context + task.endings[i]);
      auto scored = std::ssize(whole) - std::ssize(context);
      if (scored < 1 || std::ssize(whole) < 2) return usage_error(where + ": an ending has no token of its own");
      scored = std::min({scored, std::ssize(whole) - 1, positions_});
      if (const auto excess = std::ssize(whole) - positions_ - 1; excess > 0)
        whole.erase(whole.begin(), whole.begin() + excess);
      waiting_.push_back({.scored = scored,
                          .bytes = std::ssize(task.endings[i]),
                          .characters = characters(task.endings[i]) - 1,
                          .is_right = static_cast<std::int64_t>(i) == task.label,
                          .is_last = i + 1 == task.endings.size()});
      queue_.add(std::move(whole));
    }
    return {};
  }
  ChoiceScores result() {
    queue_.flush();
    return result_;
  }

 private:
  struct Ending {
    std::ptrdiff_t scored = 0;  // tokens, the last ones of the text
    std::ptrdiff_t bytes = 0;
    std::int64_t characters = 0;  // without the space before it
    bool is_right = false, is_last = false;
    double loss = 0;
    bool is_best = true;
  };
  static std::int64_t characters(std::string_view text) {
    return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; });
  }

  void take(std::span<const TokenScore> scores) {
    Ending ending = waiting_[next_++];
    for (const TokenScore& score : scores.last(static_cast<std::size_t>(ending.scored))) {
      ending.loss += score.loss;
      ending.is_best = ending.is_best && score.is_best;
    }
    task_.push_back(ending);
    if (ending.is_last) finish_task();
    if (next_ == waiting_.size()) {
      waiting_.clear();
      next_ = 0;
    }
  }
  void finish_task() {
    const auto best_is_right = [&](const auto& loss) { return std::ranges::min_element(task_, {}, loss)->is_right; };
    ++result_.tasks;
    result_.right += best_is_right([](const Ending& e) { return e.loss; }) ? 1 : 0;
    result_.right_per_token +=
        best_is_right([](const Ending& e) { return e.loss / static_cast<double>(e.scored); }) ? 1 : 0;
    result_.right_per_character += best_is_right([](const Ending& e) {
      return e.loss / static_cast<double>(std::max<std::int64_t>(e.characters, 1));
    })
                                       ? 1
                                       : 0;
    const Ending& right = *std::ranges::find(task_, true, &Ending::is_right);
    result_.exact += right.is_best ? 1 : 0;
    result_.loss_sum += right.loss;
    result_.tokens += right.scored;
    result_.bytes += right.bytes;
    task_.clear();
  }

  std::int64_t positions_;
  const train::Tokenizer& tokenizer_;
  ChoiceScores result_;
  std::vector<Ending> waiting_;  // in the order of the queue
  std::size_t next_ = 0;
  std::vector<Ending> task_;  // endings of the task that is not complete
  ScoreQueue queue_;
};

}  // namespace galvatron::generate
