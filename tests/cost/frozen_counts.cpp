// Counts of layers against tables of what they were: frozen_counts.txt has the bytes and a checksum of the operations
// of thousands of cases, frozen_tallies.txt all operations of some. With GALVATRON_FREEZE set the tables are written
// anew.
#include <cstddef>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/file.hpp>
#include <galvatron/cost/layer.hpp>

#include "../folder.hpp"
#include "frozen_cases.hpp"
#include "frozen_text.hpp"

namespace {

using namespace galvatron;
using test::CountCase;
using test::CountLine;

/// Where the counts come from.
cost::LayerCounts counts_of(const CountCase& each) { return cost::layer_counts(each.layer, each.spec, each.batch); }

/// True: a workspace may be smaller than the table says, which has those of layers written by hand.
constexpr bool workspaces_may_shrink = true;

constexpr std::size_t most_told = 10;  ///< differences in words; the others are only counted

std::string table_path(const char* name) { return std::string(test::tests_dir) + "/cost/" + name; }

/// The table as text: a line in brackets for each group of cases, then a line for each strategy.
std::string counts_table(const std::vector<CountCase>& cases) {
  std::string out =
      "# Counts of layers; GALVATRON_FREEZE=1 test_cost writes this file. A line: strategy | bytes (states stash\n"
      "# deferred input activation pass_through, forward, backward and weights workspace), operations and CRC-32C of "
      "their\n"
      "# tally (forward backward weights synchronise update), messages beside computation (data, streams, tensor).\n";
  std::string group;
  for (const CountCase& each : cases) {
    if (each.group != group) out += "[" + (group = each.group) + "]\n";
    out += strategy_text(each.spec) + " | " + text_of(test::line_of(counts_of(each))) + "\n";
  }
  return out;
}
std::string tallies_table(const std::vector<CountCase>& cases) {
  std::string out = "# All operations of some cases; GALVATRON_FREEZE=1 test_cost writes this file.\n";
  for (const CountCase& each : cases) out += "[" + each.name() + "]\n" + test::full_text(counts_of(each));
  return out;
}

/// The lines of the table of counts by the names of their cases. Throws Failure for a line that is none.
std::map<std::string, CountLine> read_counts(const std::string& text) {
  std::map<std::string, CountLine> out;
  std::istringstream in(text);
  std::string group;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    if (line.starts_with('[')) {
      group = line.substr(1, line.size() - 2);
      continue;
    }
    const std::size_t bar = line.find(" | ");
    CountLine read;
    if (bar == std::string::npos || !parse(line.substr(bar + 3), read))
      throw Failure(ErrorKind::usage, "not a line of counts: " + line);
    out.emplace(group + ": " + line.substr(0, bar), read);
  }
  return out;
}

/// What differs, in words; empty when nothing does.
std::string difference(const CountLine& now, const CountLine& table) {
  std::string out;
  const auto tell = [&out](const char* what, const std::string& is, const std::string& was) {
    out += (out.empty() ? "" : "; ") + std::string(what) + " " + is + ", in the table " + was;
  };
  for (std::size_t i = 0; i < now.bytes.size(); ++i) {
    const bool may_shrink = workspaces_may_shrink && i >= test::first_workspace;
    if (may_shrink ? now.bytes[i] > table.bytes[i] : now.bytes[i] != table.bytes[i])
      tell(test::byte_names[i], std::to_string(now.bytes[i]) + " bytes", std::to_string(table.bytes[i]));
  }
  for (std::size_t i = 0; i < now.digests.size(); ++i)
    if (now.digests[i] != table.digests[i])
      tell(test::phase_names[i], now.digests[i] + " (operations:CRC)", table.digests[i]);
  if (now.overlaps != table.overlaps) tell("messages beside computation", now.overlaps, table.overlaps);
  return out;
}

/// Sections of the table of tallies by the names of their cases.
std::map<std::string, std::string> read_tallies(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream in(text);
  std::string* section = nullptr;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    if (line.starts_with('['))
      section = &out[line.substr(1, line.size() - 2)];
    else if (section != nullptr)
      *section += line + "\n";
  }
  return out;
}

/// The lines of one text that the other lacks, each after `sign`.
std::string lines_without(const std::string& text, const std::string& other, const char* sign) {
  const auto lines = [](const std::string& all) {
    std::multiset<std::string> out;
    std::string phase;
    std::istringstream in(all);
    for (std::string line; std::getline(in, line);) {
      if (!line.starts_with("    ")) phase = line;
      out.insert(line.starts_with("    ") ? phase + ": " + line.substr(4) : line);
    }
    return out;
  };
  std::multiset<std::string> left = lines(text);
  for (const std::string& line : lines(other))
    if (const auto found = left.find(line); found != left.end()) left.erase(found);
  std::string out;
  for (const std::string& line : left) out += sign + line + "\n";
  return out;
}

/// In words: what of the operations of a case differs from the table. Workspaces are compared with the table of counts.
std::string tally_difference(const std::string& now, const std::string& table) {
  const auto without_workspaces = [](const std::string& text) {
    std::string out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      if (!workspaces_may_shrink || line.find("_workspace") == std::string::npos) out += line + "\n";
    return out;
  };
  const std::string left = without_workspaces(now);
  const std::string right = without_workspaces(table);
  return lines_without(left, right, "  now:          ") + lines_without(right, left, "  in the table: ");
}

const std::vector<CountCase>& cases() {
  static const std::vector<CountCase> all = test::count_cases();
  return all;
}

}  // namespace

TEST_CASE("the cases of the frozen counts have all kinds of strategies and both sides of what a count depends on") {
  CHECK(cases().size() > 4000);
  std::set<std::string> names;
  std::set<std::string> kinds;
  std::map<std::string, int> sides;
  for (const CountCase& each : cases()) {
    names.insert(each.name());
    kinds.insert(
        strategy_text({.sequence = each.spec.sequence, .zero = each.spec.zero, .recompute = each.spec.recompute}));
    const auto side = [&](const char* what, bool yes) { sides[std::string(what) + (yes ? ": yes" : ": no")]++; };
    const LayerSpec& layer = each.layer;
    const bool block = layer.kind == LayerKind::block;
    side("strided", each.spec.strided);
    for (const int degree : {1, 2, 4}) {
      sides["tp" + std::to_string(degree)] += each.spec.tensor == degree ? 1 : 0;
      sides["cp" + std::to_string(degree)] += each.spec.context == degree ? 1 : 0;
      sides["dp" + std::to_string(degree)] += each.spec.data == degree ? 1 : 0;
    }
    side("splits backward", block && each.batch.splits_backward && splits_backward(layer, each.spec));
    side("overlap", each.batch.overlap);
    side("two stages", each.batch.stages > 1);
    side("bf16 moments", each.batch.moments == Precision::bf16);
    side("several micro-batches", each.batch.microbatches > 1);
    if (layer.kind == LayerKind::head) side("shares the table", cost::shares_table(layer, each.batch));
    if (layer.kind == LayerKind::head && layer.head == HeadKind::language) {
      const std::int64_t rows =
          layer.tokens.of(each.batch.sequence) / each.spec.context * each.batch.microbatch / each.spec.data;
      side("several chunks of logits", cost::head_chunk_rows(rows, each.batch.precision) < rows);
    }
    if (block && each.spec.sequence == SequenceKind::ulysses)
      side("copied key/value heads", layer.kv_heads / each.spec.tensor < each.spec.context);
    if (block && each.batch.precision == Precision::fp8) {
      bool eight_bit = true;
      for (const op::Work& work : counts_of(each).forward) eight_bit &= !op::is_gemm(work.kind) || work.eight_bit;
      side("all products of 8 bits", eight_bit);
    }
  }
  CHECK(names.size() == cases().size());
  CHECK(kinds.size() == 64);
  CHECK(sides.size() == 9 + 2 * 10);
  for (const auto& [side, count] : sides) {
    CAPTURE(side);
    CHECK(count > 20);
  }
}

TEST_CASE("counts of layers are those of the tables") {
  const std::vector<CountCase> tallied = test::tallied_cases(cases());
  if (std::getenv("GALVATRON_FREEZE") != nullptr) {
    for (const auto& [name, text] :
         {std::pair{"frozen_counts.txt", counts_table(cases())}, {"frozen_tallies.txt", tallies_table(tallied)}})
      if (const Result<void> written = write_file_atomically(table_path(name), text); !written)
        throw Failure(written.error().kind, written.error().message);
    MESSAGE("wrote the counts of " << cases().size() << " cases and the tallies of " << tallied.size());
  }
  const auto table = read_counts(value_or_throw(read_text_file(table_path("frozen_counts.txt"))));
  std::size_t differ = 0;
  for (const CountCase& each : cases()) {
    const std::string name = each.name();
    const auto found = table.find(name);
    const cost::LayerCounts counts = counts_of(each);
    const std::string what =
        found == table.end() ? "not in the table" : difference(test::line_of(counts), found->second);
    if (what.empty() || ++differ > most_told) continue;
    FAIL_CHECK(name << ": " << what << "\nNow:\n" << test::full_text(counts));
  }
  CHECK(differ == 0);
  CHECK(table.size() == cases().size());

  const auto tallies = read_tallies(value_or_throw(read_text_file(table_path("frozen_tallies.txt"))));
  CHECK(tallies.size() == tallied.size());
  std::size_t told = 0;
  for (const CountCase& each : tallied) {
    const auto found = tallies.find(each.name());
    const std::string what = found == tallies.end() ? "  not in the table of tallies\n"
                                                    : tally_difference(test::full_text(counts_of(each)), found->second);
    if (!what.empty() && ++told <= most_told) FAIL_CHECK(each.name() << ":\n" << what);
  }
  CHECK(told == 0);
}

TEST_CASE("the comparison with the tables sees one operation or one byte too many") {
  const CountCase& each = cases()[cases().size() / 2];
  cost::LayerCounts counts = counts_of(each);
  const CountLine before = test::line_of(counts);
  const std::string full = test::full_text(counts);
  CHECK(difference(before, before).empty());
  counts.backward_workspace += Bytes{64};
  CHECK(difference(test::line_of(counts), before).find("backward_workspace") == 0);
  counts = counts_of(each);
  counts.forward.push({.kind = op::Kind::add, .m = 1});
  CHECK(difference(test::line_of(counts), before).find("forward") == 0);
  CHECK(tally_difference(test::full_text(counts), full) == "  now:            forward: 1 x add 1\n");
  CountLine read;
  CHECK(test::parse(text_of(before), read));
  CHECK(read == before);
}
