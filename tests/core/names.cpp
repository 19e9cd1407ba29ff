#include <galvatron/core/names.hpp>

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

using Names = std::vector<std::string>;

const Names models{"gpt2-tiny",  "gpt2-124m", "gpt2-1.5b",  "gpt-6.7b",   "gpt-1t",      "llama2-7b",
                   "llama2-70b", "llama3-8b", "llama3-70b", "bert-large", "mixtral-8x7b"};
const Names options{"--model",      "--cluster", "--global-batch",     "--seq",     "--memory", "--space",
                    "--checkpoint", "--search",  "--checkpoint-every", "--threads", "--out",    "--microbatches"};

TEST_CASE("names are cut into words and numbers") {
  CHECK(detail::parts_of("Llama-3.1-8B") == Names{"llama", "3.1", "8b"});
  CHECK(detail::parts_of("gpt2-xl") == Names{"gpt", "2", "xl"});
  CHECK(detail::parts_of("Mixtral-8x7B-v0.1") == Names{"mixtral", "8x7b", "v", "0.1"});
  CHECK(detail::parts_of("--global-batch") == Names{"global", "batch"});
  CHECK(detail::parts_of("...") == Names{});
}

TEST_CASE("a beginning is meant before a word that looks alike") {
  CHECK(nearest_names("gpt2", models, 8) == Names{"gpt2-tiny", "gpt2-124m", "gpt2-1.5b"});
  CHECK(nearest_names("llama3", models, 8) == Names{"llama3-8b", "llama3-70b"});
  CHECK(nearest_names("mem", options) == Names{"--memory"});
  CHECK(nearest_names("check", options) == Names{"--checkpoint", "--checkpoint-every"});
  CHECK(nearest_names("output", options) == Names{"--out"});
  CHECK(nearest_names("checkpoint-dir", options) == Names{"--checkpoint"});
}

TEST_CASE("case and punctuation make no difference, and parts count") {
  for (const auto& [word, name] :
       std::vector<std::pair<std::string, std::string>>{{"GPT2_124M", "gpt2-124m"},
                                                        {"Llama-3.1-8B", "llama3-8b"},
                                                        {"Meta-Llama-3-8B", "llama3-8b"},
                                                        {"Llama-2-7b-hf", "llama2-7b"},
                                                        {"llama-2-70b", "llama2-70b"},
                                                        {"Mixtral-8x7B-v0.1", "mixtral-8x7b"},
                                                        {"bert-large-uncased", "bert-large"}}) {
    CAPTURE(word);
    CHECK(nearest_names(word, models, 8) == Names{name});
  }
  CHECK(nearest_names("batch", options) == Names{"--global-batch"});
  CHECK(nearest_names("batch-size", options).front() == "--global-batch");
  CHECK(nearest_names("micro-batches", options) == Names{"--microbatches"});
}

TEST_CASE("wrong letters are forgiven, and what resembles nothing has no nearest name") {
  CHECK(nearest_names("gtp2-tiny", models) == Names{"gpt2-tiny"});
  CHECK(nearest_names("clutser", {"model", "cluster"}) == Names{"cluster"});
  CHECK(nearest_names("zzzzzz", models).empty());
  CHECK(nearest_names("Qwen2.5-7B", models).empty());
  CHECK(nearest_names("", models).empty());
  CHECK(nearest_names(std::string(1'000'000, 'x'), models).empty());
  CHECK(nearest_names("gpt2", {}).empty());
}

}  // namespace
}  // namespace galvatron
