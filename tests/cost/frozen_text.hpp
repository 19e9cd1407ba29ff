// Counts of a layer as text: one line, or all operations one by one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/cost/counts.hpp>

namespace galvatron::test {

inline constexpr std::array<const char*, 5> phase_names{"forward", "backward", "weights", "synchronise", "update"};
inline std::array<const op::WorkList*, 5> phases_of(const cost::LayerCounts& counts) {
  return {&counts.forward, &counts.backward, &counts.weights, &counts.synchronise, &counts.update};
}

/// In the order of a line. The last three are workspaces.
inline constexpr std::array<const char*, 9> byte_names{
    "states",           "stash",        "deferred",          "input",
    "activation",       "pass_through", "forward_workspace", "backward_workspace",
    "weights_workspace"};
inline constexpr std::size_t first_workspace = 6;
inline std::array<Bytes, 9> bytes_of(const cost::LayerCounts& c) {
  return {c.states,           c.stash,        c.deferred,          c.input,
          c.activation,       c.pass_through, c.forward_workspace, c.backward_workspace,
          c.weights_workspace};
}

/// One operation with its extents (trailing zeros left out) and properties; without how often it happens.
inline std::string text_of(const op::Work& work) {
  std::string out = op::name_of(work.kind);
  const std::array extents{work.m, work.n, work.k, work.l};
  std::size_t last = extents.size();
  while (last > 1 && extents[last - 1] == 0) --last;
  for (std::size_t i = 0; i < last; ++i) out += " " + std::to_string(extents[i]);
  for (const auto& [has, word] : {std::pair{work.causal, " causal"},
                                  {work.eight_bit, " 8bit"},
                                  {work.kernel == op::AttentionKernel::unfused, " unfused"},
                                  {work.dropout, " dropout"}})
    if (has) out += word;
  if (work.overlap != 0) out += " overlap" + std::to_string(work.overlap);
  if (work.stride != 1) out += " stride" + std::to_string(work.stride);
  if (work.writes_one_in == op::Work::for_reduction)
    out += " for_reduction";
  else if (work.writes_one_in != 0)
    out += " writes_one_in" + std::to_string(work.writes_one_in);
  return out;
}

/// Every distinct operation on a line with how often it happens, sorted.
inline std::vector<std::string> tally_of(const op::WorkList& list) {
  std::vector<std::pair<std::string, std::int64_t>> sums;
  for (const op::Work& work : list) sums.emplace_back(text_of(work), work.times);
  std::sort(sums.begin(), sums.end());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < sums.size();) {
    std::int64_t times = 0;
    std::size_t end = i;
    for (; end < sums.size() && sums[end].first == sums[i].first; ++end) times += sums[end].second;
    out.push_back(std::to_string(times) + " x " + sums[i].first);
    i = end;
  }
  return out;
}

inline std::string joined(const std::vector<std::string>& lines, const char* before) {
  std::string out;
  for (const std::string& line : lines) out += before + line + "\n";
  return out;
}

/// The number of operations and the CRC-32C of their tally; `-` for none.
inline std::string digest_of(const op::WorkList& list) {
  std::int64_t operations = 0;
  for (const op::Work& work : list) operations += work.times;
  if (operations == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%08x", static_cast<long long>(operations), crc32c(joined(tally_of(list), "")));
  return text;
}

/// Numbers of a line of the table, which `line_of` writes and `parsed_line` reads.
struct CountLine {
  std::array<std::int64_t, 9> bytes{};
  std::array<std::string, 5> digests;
  std::string overlaps;  ///< letters for data, streams and tensor messages that run beside computation

  friend bool operator==(const CountLine&, const CountLine&) = default;
};
inline CountLine line_of(const cost::LayerCounts& counts) {
  CountLine out;
  const auto bytes = bytes_of(counts);
  for (std::size_t i = 0; i < bytes.size(); ++i) out.bytes[i] = bytes[i].count;
  const auto phases = phases_of(counts);
  for (std::size_t i = 0; i < phases.size(); ++i) out.digests[i] = digest_of(*phases[i]);
  out.overlaps = std::string(counts.overlaps_gradients ? "d" : "") + (counts.streams ? "s" : "") +
                 (counts.tensor_pieces > 0 ? "t" : "");
  if (out.overlaps.empty()) out.overlaps = "-";
  return out;
}
inline std::string text_of(const CountLine& line) {
  std::string out;
  for (const std::int64_t bytes : line.bytes) out += std::to_string(bytes) + " ";
  for (const std::string& digest : line.digests) out += digest + " ";
  return out + line.overlaps;
}
/// False: the text is no such line.
inline bool parse(const std::string& text, CountLine& out) {
  std::istringstream in(text);
  for (std::int64_t& bytes : out.bytes) in >> bytes;
  for (std::string& digest : out.digests) in >> digest;
  in >> out.overlaps;
  return !in.fail();
}

/// All that is counted, operation by operation.
inline std::string full_text(const cost::LayerCounts& counts) {
  std::string out;
  const auto bytes = bytes_of(counts);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i].count != 0) out += std::string("  ") + byte_names[i] + " " + std::to_string(bytes[i].count) + "\n";
  const auto phases = phases_of(counts);
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (phases[i]->size() > 0) out += std::string("  ") + phase_names[i] + "\n" + joined(tally_of(*phases[i]), "    ");
  return out;
}

}  // namespace galvatron::test
