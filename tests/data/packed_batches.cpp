// labels: tsan
#include <galvatron/data/packed_batches.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/data/token_source.hpp>

#include "../folder.hpp"
#include "data_writers.hpp"

using namespace galvatron;
using namespace galvatron::test;
using namespace galvatron::train;
namespace fs = std::filesystem;

namespace {

// JSON lines of random texts, in which every document is another one.
struct RandomDocuments {
  Folder folder;
  std::vector<std::string> texts;
  std::unique_ptr<DocumentSource> source;

  RandomDocuments(std::mt19937_64& random, std::size_t count, std::uint64_t seed, std::int64_t end_token = -1) {
    std::lognormal_distribution<double> length(3.5, 1.2);
    std::string lines;
    for (std::size_t i = 0; i < count; ++i) {
      std::string text = std::to_string(i) + ":";
      const auto bytes = std::min<std::size_t>(static_cast<std::size_t>(length(random)), 900);
      while (text.size() < bytes) text += static_cast<char>('a' + random() % 26);
      lines += json_line(text);
      texts.push_back(std::move(text));
    }
    const std::vector<fs::path> paths{folder.write("a.jsonl", lines)};
    auto opened = DocumentSource::open(
        paths, {.vocabulary = 257, .seed = seed, .separator = {}, .end_token = end_token, .skip_empty = false});
    REQUIRE(opened.has_value());
    source = std::make_unique<DocumentSource>(std::move(*opened));
  }
};

std::unique_ptr<PackedBatches> batches_of(const DocumentSource& source, std::int64_t global_batch,
                                          const PackingOptions& options) {
  auto made = PackedBatches::open(source, global_batch, options);
  REQUIRE(made.has_value());
  return std::move(*made);
}

Tokens packed_inputs(PackedBatches& batches, std::int64_t step, std::int64_t number, SequenceRange range) {
  Tokens out(static_cast<std::size_t>(range.count));
  batches.inputs(step, number, 1, range, {out.data(), range.count});
  return out;
}
Tokens packed_targets(PackedBatches& batches, std::int64_t step, std::int64_t number, SequenceRange range) {
  Tokens out(static_cast<std::size_t>(range.count));
  batches.targets(step, number, 1, range, {out.data(), range.count});
  return out;
}

// Of every row of a step's documents: sample, position, input, target. Padding has no target.
using Row = std::array<std::int64_t, 4>;
std::vector<Row> rows_of_step(PackedBatches& batches, std::int64_t step) {
  std::vector<Row> out;
  const auto packing = batches.packing(step);
  for (std::int64_t m = 0; m < packing->microbatches(); ++m)
    for (std::int64_t g = 0; g < packing->groups(m); ++g) {
      const PackedSequence& sequence = packing->sequence(m, g);
      const SequenceRange all{0, sequence.rows()};
      const Tokens inputs = packed_inputs(batches, step, packing->number(m, g), all);
      const Tokens targets = packed_targets(batches, step, packing->number(m, g), all);
      for (const Document& document : sequence.documents)
        for (std::int64_t t = 0; t < document.rows; ++t) {
          const auto row = static_cast<std::size_t>(document.first + t);
          if (document.sample == Document::padding) {
            CHECK(inputs[row] == 0);
            CHECK(targets[row] == -1);
          } else {
            out.push_back({document.sample, t, inputs[row], targets[row]});
          }
        }
    }
  std::ranges::sort(out);
  return out;
}

PackingOptions random_packing(std::mt19937_64& random) {
  const auto multiple = std::int64_t{1} << random() % 6;
  return {.max_tokens = 1000 + static_cast<std::int64_t>(random() % 5000),
          .groups = static_cast<std::int64_t>(1 + random() % 5),
          .multiple = multiple,
          .linear = static_cast<std::int64_t>(random() % 2000)};
}

}  // namespace

TEST_CASE("an epoch has every token of every document once as input and once as target, the ends apart") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  for (const std::int64_t end_token : {-1, 256}) {
    const RandomDocuments data(random, 60, seed, end_token);
    const auto batches = batches_of(*data.source, 12, random_packing(random));
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::map<std::string, std::string> predictions;  // what a document's inputs are, and its targets
      for (std::int64_t step = 5 * epoch; step < 5 * (epoch + 1); ++step) {
        const std::vector<Row> rows = rows_of_step(*batches, step);
        for (std::size_t from = 0; from < rows.size();) {
          std::string inputs, targets;
          std::size_t to = from;
          for (; to < rows.size() && rows[to][0] == rows[from][0]; ++to) {
            REQUIRE(rows[to][1] == static_cast<std::int64_t>(to - from));
            inputs += static_cast<char>(rows[to][2]);
            targets += rows[to][3] == 256 ? '$' : static_cast<char>(rows[to][3]);
            REQUIRE(rows[to][3] >= 0);
          }
          REQUIRE(predictions.emplace(inputs, targets).second);
          from = to;
        }
      }
      std::map<std::string, std::string> expected;
      for (const std::string& text : data.texts)
        end_token < 0 ? expected.emplace(text.substr(0, text.size() - 1), text.substr(1))
                      : expected.emplace(text, text.substr(1) + "$");
      CHECK(predictions == expected);
    }
  }
}

TEST_CASE("any packing has the same rows of documents, and the same number of targets") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const RandomDocuments data(random, 70, seed);
  const auto one = batches_of(*data.source, 16, {.max_tokens = std::int64_t{1} << 20});
  for (int round = 0; round < 30; ++round) {
    const auto other = batches_of(*data.source, 16, random_packing(random));
    const auto step = static_cast<std::int64_t>(random() % 40);
    const std::vector<Row> expected = rows_of_step(*one, step);
    REQUIRE(rows_of_step(*other, step) == expected);
    std::int64_t targets = 0;
    for (const std::int64_t rows : other->rows(step)) targets += rows;
    CHECK(targets == std::ssize(expected));
    CHECK(other->packing(step)->tokens() == targets);
  }
}

TEST_CASE("a document is the sample of a text of its bytes with one less for a sequence") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const RandomDocuments data(random, 20, seed);
  const auto batches = batches_of(*data.source, 20, {.max_tokens = 2000, .groups = 3});
  const auto packing = batches->packing(0);
  for (std::size_t s = 0; s < packing->sequences.size(); ++s)
    for (const Document& document : packing->sequences[s].documents) {
      const std::string& text = data.texts[static_cast<std::size_t>(data.source->document(document.sample))];
      const std::vector<fs::path> paths{data.folder.write("one.txt", text)};
      const auto alone = TokenSource::open(paths, {.sequence = document.rows, .vocabulary = 257, .seed = 9});
      REQUIRE(alone.has_value());
      REQUIRE(alone->windows() == 1);
      Tokens inputs(static_cast<std::size_t>(document.rows)), targets(inputs.size());
      alone->inputs(0, 1, {0, document.rows}, {inputs.data(), document.rows});
      alone->targets(0, 1, {0, document.rows}, {targets.data(), document.rows});
      const SequenceRange range{document.first, document.rows};
      CHECK(packed_inputs(*batches, 0, static_cast<std::int64_t>(s), range) == inputs);
      CHECK(packed_targets(*batches, 0, static_cast<std::int64_t>(s), range) == targets);
    }
}

TEST_CASE("ranks read any rows of any sequences, also behind the end") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const RandomDocuments data(random, 40, seed);
  const auto batches = batches_of(*data.source, 24, {.max_tokens = 1500, .groups = 3, .multiple = 8});
  for (int round = 0; round < 200; ++round) {
    const auto step = static_cast<std::int64_t>(random() % 8);
    const auto packing = batches->packing(step);
    const auto all = std::ssize(packing->sequences);
    const auto first = static_cast<std::int64_t>(random()) % all;
    const auto from = first < 0 ? first + all : first;
    const auto sequences = static_cast<std::int64_t>(1 + random() % 3);
    if (from + sequences > all) continue;
    const SequenceRange range{static_cast<std::int64_t>(random() % 1500), static_cast<std::int64_t>(random() % 300)};
    Tokens inputs(static_cast<std::size_t>(range.count * sequences)), targets(inputs.size());
    batches->inputs(step, from, sequences, range, {inputs.data(), range.count * sequences});
    batches->targets(step, from, sequences, range, {targets.data(), range.count * sequences});
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t rows = packing->sequences[static_cast<std::size_t>(from + i)].rows();
      const Tokens whole_inputs = packed_inputs(*batches, step, from + i, {0, rows});
      const Tokens whole_targets = packed_targets(*batches, step, from + i, {0, rows});
      for (std::int64_t s = 0; s < range.count; ++s) {
        const auto place = static_cast<std::size_t>(s * sequences + i);
        const auto row = static_cast<std::size_t>(range.first + s);
        REQUIRE(inputs[place] == (range.first + s < rows ? whole_inputs[row] : 0));
        REQUIRE(targets[place] == (range.first + s < rows ? whole_targets[row] : -1));
      }
    }
  }
  Tokens out(10);
  const auto all = std::ssize(batches->packing(0)->sequences);
  CHECK_THROWS_AS(batches->inputs(0, all, 1, {0, 10}, {out.data(), 10}), Failure);
  CHECK_THROWS_AS(batches->inputs(0, -1, 1, {0, 10}, {out.data(), 10}), Failure);
  CHECK_THROWS_AS(batches->targets(0, 0, 1, {0, 11}, {out.data(), 10}), Failure);
}

TEST_CASE("a run that is resumed goes on with the documents that it would have had, whatever its ranks") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const RandomDocuments data(random, 50, seed);
  const auto whole = batches_of(*data.source, 16, {.max_tokens = 3000, .groups = 2});
  std::vector<std::vector<Row>> steps;
  for (std::int64_t step = 0; step < 12; ++step) steps.push_back(rows_of_step(*whole, step));
  for (const std::int64_t done : {1, 5, 9}) {
    const std::vector<fs::path> paths{data.folder.path / "a.jsonl"};
    const auto again = DocumentSource::open(paths, {.vocabulary = 257, .seed = seed, .separator = {}, .end_token = -1});
    REQUIRE(again.has_value());
    CHECK(again->checksum() == data.source->checksum());
    const auto rest = batches_of(*again, 16, random_packing(random));  // another plan
    for (std::int64_t step = done; step < 12; ++step)
      REQUIRE(rows_of_step(*rest, step) == steps[static_cast<std::size_t>(step)]);
    // The documents of a step are those behind the ones that were read, also with another batch from there on.
    const auto halved = batches_of(*again, 8, {.max_tokens = 1000});
    REQUIRE(halved->rows(2 * done).size() == 8);
    const auto expected = whole->rows(done);
    CHECK(std::ranges::equal(halved->rows(2 * done), std::vector(expected.begin(), expected.begin() + 8)));
  }
}

TEST_CASE("a packer of its own decides, and is held to what a packing is") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const RandomDocuments data(random, 30, seed);
  std::mutex mutex;  // two steps are packed at the same time
  std::map<std::int64_t, int> asked;
  // Micro-batches of one and of two groups.
  PackedBatches batches(*data.source, 6, [&](std::int64_t step, std::span<const std::int64_t> rows) {
    {
      const std::scoped_lock lock(mutex);
      ++asked[step];
    }
    Packing out;
    for (std::size_t i = 0; i < rows.size(); i += 3) {
      PackedSequence pair, single;
      pair.add(static_cast<std::int64_t>(i) + 1, rows[i + 1]);
      pair.add(static_cast<std::int64_t>(i), rows[i]);
      single.add(static_cast<std::int64_t>(i) + 2, rows[i + 2]);
      out.add({pair});
      out.add({PackedSequence{}, single});
    }
    return out;
  });
  const auto one = batches_of(*data.source, 6, {.max_tokens = std::int64_t{1} << 20});
  for (const std::int64_t step : {0, 1, 2, 1, 0}) CHECK(rows_of_step(batches, step) == rows_of_step(*one, step));
  {
    const std::scoped_lock lock(mutex);
    for (const std::int64_t step : {0, 1, 2}) CHECK(asked.at(step) == 1);
  }
  CHECK(batches.packing(1)->groups(1) == 2);
  CHECK(batches.packing(1)->number(1, 1) == 2);
  CHECK(batches.packing(1)->sequence(1, 0).rows() == 0);
  PackedBatches loses(*data.source, 6, [](std::int64_t, std::span<const std::int64_t>) { return Packing{}; });
  CHECK_THROWS_WITH_AS(static_cast<void>(loses.packing(0)), "packing: document 0 is missing", Failure);
}

TEST_CASE("ranks that share a source get the same packings") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const RandomDocuments data(random, 30, seed);
  const PackingOptions options{.max_tokens = 1000, .groups = 2};
  std::atomic<int> made = 0;
  PackedBatches batches(*data.source, 10, [&](std::int64_t, std::span<const std::int64_t> rows) {
    ++made;
    return *pack(rows, options);
  });
  constexpr std::size_t ranks = 4;
  constexpr std::int64_t steps = 50;
  std::array<std::vector<Row>, ranks> seen;
  std::vector<std::thread> threads;
  for (std::vector<Row>& rows : seen)
    threads.emplace_back([&batches, &rows] {
      for (std::int64_t step = 0; step < steps; ++step) {
        const auto packing = batches.packing(step);
        Tokens out(static_cast<std::size_t>(packing->sequences[0].rows()));
        batches.targets(step, 0, 1, {0, std::ssize(out)}, {out.data(), std::ssize(out)});
        rows.push_back({step, std::ssize(packing->sequences), out.front(), out.back()});
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& rows : seen) CHECK(rows == seen[0]);
  CHECK(made >= steps);
}

TEST_CASE("a document that no sequence holds is named before the run begins, with what would hold it") {
  const Folder folder;
  const std::vector<fs::path> paths{
      folder.write("a.jsonl", json_line("short") + json_line(std::string(101, 'x')) + json_line("more"))};
  const auto source = DocumentSource::open(paths, {.vocabulary = 256, .seed = 1, .separator = {}});
  REQUIRE(source.has_value());
  CHECK(refused(PackedBatches::open(*source, 2, {.max_tokens = 99})) ==
        paths[0].string() +
            ", line 2: the document has 101 tokens, which take 100 rows, and packed sequences have at most 99; give "
            "--max-tokens 100 or more, or split the document");
  CHECK(refused(PackedBatches::open(*source, 2, {.max_tokens = 99, .groups = 1, .multiple = 16}))
            .find("have at most 96; give --max-tokens 112 or more") != std::string::npos);
  CHECK(refused(PackedBatches::open(*source, 2, {.max_tokens = 100, .groups = 1, .multiple = 16}))
            .find("have at most 96; give --max-tokens 112 or more") != std::string::npos);
  CHECK(PackedBatches::open(*source, 2, {.max_tokens = 112, .groups = 1, .multiple = 16}).has_value());
  CHECK(PackedBatches::open(*source, 2, {.max_tokens = 100}).has_value());
  CHECK(refused(PackedBatches::open(*source, 2, {.max_tokens = 0})).find("at most 0 tokens") != std::string::npos);
}
