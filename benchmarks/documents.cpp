// Documents as training data: how fast files of every kind are indexed, and how well a batch is packed.
//
//   zcat lengths.txt.gz | benchmark_documents /dev/stdin        lengths in tokens, one a line
//
// Texts of these lengths are written to the folder for temporary files, and opened from the page cache. Batches of
// documents in their order are packed; documents longer than the limit are left out.
#include <stdlib.h>  // mkdtemp

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <galvatron/data/document_source.hpp>
#include <galvatron/data/packing.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;
namespace fs = std::filesystem;

struct Arguments {
  std::string lengths;
  std::int64_t batch = 512;
  std::int64_t groups = 8;
  std::int64_t linear = 49152;
  std::vector<std::int64_t> limits{16384, 65536, 196608};
  int rounds = 5;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("lengths", a.lengths, "file of lengths in tokens, one a line")->required();
  app.add_option("--batch", a.batch, "documents of a step")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--groups", a.groups, "of a micro-batch")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--linear", a.linear, "rows whose attention takes as long as all else, about 12 H")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-tokens", a.limits, "rows of a packed sequence")->capture_default_str();
  app.add_option("--rounds", a.rounds, "of which the best counts")->capture_default_str()->check(CLI::PositiveNumber);
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double best_of(int rounds, const std::function<void()>& body) {
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const double begin = seconds();
    body();
    best = std::min(best, seconds() - begin);
  }
  return best;
}

/// A text of words, with a line's end now and then, as JSON escapes it.
std::string text_of_length(std::int64_t bytes) {
  std::string out;
  for (std::int64_t i = 0; i < bytes; ++i)
    out += i % 81 == 80 ? '\n' : i % 6 == 5 ? ' ' : static_cast<char>('a' + i * 7 % 26);
  return out;
}

void index_files(const Arguments& a, const std::vector<std::int64_t>& lengths, const fs::path& folder) {
  const auto report = [&](const char* kind, const fs::path& path, const train::DocumentOptions& options) {
    const std::vector<fs::path> paths{path};
    const auto bytes = static_cast<double>(fs::file_size(path));
    const double time = best_of(a.rounds, [&] {
      const auto source = value_or_throw(train::DocumentSource::open(paths, options));
      if (source.documents() > std::ssize(lengths)) throw Failure(ErrorKind::internal, "more documents than lengths");
    });
    std::printf("  %-16s %8.1f MB  %6.0f MB/s  %10.0f documents/s\n", kind, bytes / 1e6, bytes / 1e6 / time,
                static_cast<double>(lengths.size()) / time);
    fs::remove(path);
  };
  std::printf("indexing %zu documents\n", lengths.size());
  std::ofstream text(folder / "a.txt", std::ios::binary), lines(folder / "a.jsonl", std::ios::binary);
  std::ofstream tokens(folder / "a.bin", std::ios::binary);
  std::int64_t count = 0;
  for (const std::int64_t length : lengths) count += length;
  std::array<std::int32_t, 256> header{20240520, 1, static_cast<std::int32_t>(count)};
  tokens.write(reinterpret_cast<const char*>(header.data()), sizeof header);
  for (const std::int64_t length : lengths) {
    const std::string each = text_of_length(length);
    text << each << "<|endoftext|>";
    lines << nlohmann::json{{"text", each}}.dump() << '\n';
    std::vector<std::uint16_t> ids(each.begin(), each.end());
    ids.back() = 50256;
    tokens.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(2 * ids.size()));
  }
  text.close();
  lines.close();
  tokens.close();
  const train::DocumentOptions bytes{.vocabulary = 256, .seed = 1, .separator = "<|endoftext|>", .skip_empty = true};
  report("text, separated", folder / "a.txt", bytes);
  report("JSON lines", folder / "a.jsonl", bytes);
  report(".bin, 16-bit", folder / "a.bin",
         {.vocabulary = 50257, .seed = 1, .separator = {}, .end_token = 50256, .skip_empty = true});
}

/// Of a step whose groups wait for each other in every micro-batch: the sum of their largest works. `bound`: no packing
/// has less, as the longest document is whole.
struct StepWork {
  double slowest = 0, bound = 0;
};
StepWork work_of(const train::Packing& packed, const train::PackingOptions& options) {
  StepWork out;
  double all = 0, longest = 0;
  for (std::int64_t m = 0; m < packed.microbatches(); ++m) {
    double most = 0;
    for (std::int64_t g = 0; g < options.groups; ++g) {
      double sum = 0;
      for (const Document& document : packed.sequence(m, g).documents) {
        if (document.sample == Document::padding) continue;
        const auto work = static_cast<double>(options.work(document.rows));
        longest = std::max(longest, work);
        sum += work;
      }
      most = std::max(most, sum);
      all += sum;
    }
    out.slowest += most;
  }
  out.bound = std::max(longest, all / static_cast<double>(options.groups));
  return out;
}

void pack_batches(const Arguments& a, const std::vector<std::int64_t>& all) {
  std::printf("packing batches of %lld documents for %lld groups; work s^2 + %lld s\n", static_cast<long long>(a.batch),
              static_cast<long long>(a.groups), static_cast<long long>(a.linear));
  std::printf("  %10s %8s %8s %12s %8s %6s %15s %16s %8s\n", "max tokens", "multiple", "too long", "microbatches",
              "padding", "full", "work over bound", "packed by tokens", "time");
  for (const std::int64_t limit : a.limits)
    for (const std::int64_t multiple : {1, 128}) {
      const train::PackingOptions packing{
          .max_tokens = limit, .groups = a.groups, .multiple = multiple, .linear = a.linear};
      train::PackingOptions by_tokens = packing;
      by_tokens.linear = (std::int64_t{1} << 31) - 1;
      std::vector<std::int64_t> rows;
      for (const std::int64_t length : all)
        if (length >= 2 && length - 1 <= packing.capacity()) rows.push_back(length - 1);
      const std::int64_t batches = std::ssize(rows) / a.batch;
      double padding = 0, tokens = 0, capacity = 0, microbatches = 0, time = 0;
      StepWork work, tokens_work;
      for (std::int64_t b = 0; b < batches; ++b) {
        const std::span<const std::int64_t> batch(rows.data() + b * a.batch, static_cast<std::size_t>(a.batch));
        const auto packed = value_or_throw(train::pack(batch, packing));
        time += best_of(a.rounds, [&] { static_cast<void>(value_or_throw(train::pack(batch, packing))); });
        padding += static_cast<double>(packed.padding());
        tokens += static_cast<double>(packed.tokens());
        microbatches += static_cast<double>(packed.microbatches());
        capacity += static_cast<double>(std::ssize(packed.sequences) * limit);
        const StepWork step = work_of(packed, packing);
        work.slowest += step.slowest;
        work.bound += step.bound;
        tokens_work.slowest += work_of(value_or_throw(train::pack(batch, by_tokens)), packing).slowest;
      }
      std::printf("  %10lld %8lld %8zu %12.1f %7.2f%% %5.1f%% %15.3f %16.3f %5.0f us\n", static_cast<long long>(limit),
                  static_cast<long long>(multiple), all.size() - rows.size(),
                  microbatches / static_cast<double>(batches), 100 * padding / (tokens + padding),
                  100 * tokens / capacity, work.slowest / work.bound, tokens_work.slowest / work.bound,
                  1e6 * time / static_cast<double>(batches));
    }
}

int run(const Arguments& a) {
  std::ifstream in(a.lengths);
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = 0; in >> length;) lengths.push_back(length);
  if (lengths.empty()) throw Failure(ErrorKind::usage, a.lengths + " has no lengths");
  std::string folder = (fs::temp_directory_path() / "galvatron-benchmark-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw Failure(ErrorKind::usage, "cannot make a folder like " + folder);
  try {
    index_files(a, lengths, folder);
  } catch (...) {
    fs::remove_all(folder);
    throw;
  }
  fs::remove_all(folder);
  pack_batches(a, lengths);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_documents", "Indexing of documents in files, and packing of batches.", argc, argv, options,
                 run);
}
