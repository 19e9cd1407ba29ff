// Allocation: the frames of a program's phases, each a stack from both ends.
//
// A buffer of a frame lives from the first step to the last that names it. It goes to an end of the stack whose top
// lives at least as long; where none does, the shorter of the tops is kept until the new buffer is free, too. What is
// last pushed is then first popped, for extents of any size, and a frame has no gaps: it takes the largest sum of the
// buffers that live at one step.
//
// A step that may write in place of an operand that nothing reads later does so.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include <galvatron/program/program.hpp>

namespace galvatron::program {

namespace detail {

/// True when output `out` of a step may lie where its operand `in` does (device/device.hpp).
constexpr bool may_replace(Code code, int out, int in) {
  switch (code) {
    case Code::norm_forward:
    case Code::experts_forward:
    case Code::experts_backward:
    case Code::gate:
    case Code::jitter:
      return out == 0 && in == 0;
    case Code::add_norm_forward:
      return out == 0 ? in < 2 : out == 1 && in == 1;
    case Code::norm_backward:
      return out == 0 && in != 2;
    case Code::add:
    case Code::multiply:
    case Code::activation_backward:
      return out == 0;
    case Code::gate_backward:
      return out == 0 && (in == 0 || in == 2);
    default:
      return false;
  }
}

class Allocation {
 public:
  explicit constexpr Allocation(LayerProgram& program) : p_(program) {
    for (int phase = 0; phase < phases; ++phase) {
      find_lifetimes(phase);
      replace_operands(phase);
      stack(phase);
    }
  }

 private:
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  constexpr Buffer& buffer(int i) { return p_.buffers[i]; }
  [[nodiscard]] constexpr bool is_frame(int value) const {
    return value >= 0 && p_.buffer_of(value).storage == Storage::frame;
  }
  template <class F>
  static constexpr void for_each_value(const Step& step, const F& f) {
    for (const int v : step.in)
      if (v >= 0) f(v);
    for (const int v : step.out)
      if (v >= 0) f(v);
    for (const int v : step.scratch)
      if (v >= 0) f(v);
  }
  constexpr void find_lifetimes(int phase) {
    const LayerProgram::Steps& steps = p_.phase[at(phase)];
    for (int i = 0; i < steps.size; ++i)
      for_each_value(steps[i], [&](int v) {
        if (!is_frame(v)) return;
        Buffer& b = buffer(p_.value(v).buffer);
        if (b.first < 0) {
          b.phase = static_cast<std::int8_t>(phase);
          b.first = static_cast<std::int16_t>(i);
        }
        b.last = static_cast<std::int16_t>(i);
      });
  }
  constexpr void replace_operands(int phase) {
    const LayerProgram::Steps& steps = p_.phase[at(phase)];
    for (int i = 0; i < steps.size; ++i) {
      const Step& step = steps[i];
      for (int out = 0; out < static_cast<int>(step.out.size()); ++out)
        for (int in = 0; in < static_cast<int>(step.in.size()); ++in)
          if (may_replace(step.code, out, in) && !writes_over(step, step.in[at(in)]) &&
              replaces(i, step.out[at(out)], step.in[at(in)]))
            break;
    }
  }
  // True when a result of the step lies where the value is already.
  [[nodiscard]] constexpr bool writes_over(const Step& step, int value) const {
    for (const int made : step.out)
      if (made >= 0 && value >= 0 && p_.value(made).buffer == p_.value(value).buffer) return true;
    return false;
  }
  // Puts the value `made` of step `i` where the value `read` was, if that is free then.
  constexpr bool replaces(int i, int made, int read) {
    if (!is_frame(made) || !is_frame(read)) return false;
    const int from = p_.value(made).buffer;
    const int to = p_.value(read).buffer;
    Buffer& a = buffer(from);
    Buffer& b = buffer(to);
    if (from == to || a.first != i || b.last != i || a.elements != b.elements || a.scalar != b.scalar ||
        p_.value(made).part != p_.value(read).part)
      return false;
    b.last = a.last;
    for (int v = 0; v < p_.values.size; ++v)
      if (p_.value(v).buffer == from) p_.values[v].buffer = static_cast<std::int16_t>(to);
    a.first = a.last = -1;
    a.phase = -1;
    return true;
  }

  constexpr void stack(int phase) {
    // In the order in which they begin; of those that begin together the longest-lived first.
    std::array<int, LayerProgram::most_buffers> order{};
    int count = 0;
    for (int b = 0; b < p_.buffers.size; ++b) {
      if (p_.buffer(b).phase != phase) continue;
      int place = count++;
      for (; place > 0 && comes_before(b, order[at(place - 1)]); --place) order[at(place)] = order[at(place - 1)];
      order[at(place)] = b;
    }
    int top[2]{-1, -1};  // of the low end and of the high end
    for (int i = 0; i < count; ++i) {
      const int b = order[at(i)];
      for (int& t : top)
        while (t >= 0 && buffer(t).last < buffer(b).first) t = buffer(t).below;
      push(b, top);
    }
    find_peaks(phase);
  }
  // Steps at which no buffer lives less than at another one, by the buffers that live there.
  constexpr void find_peaks(int phase) {
    const int first = p_.peaks.size;
    for (int i = 0; i < p_.phase[at(phase)].size; ++i) {
      FramePeak peak{.phase = static_cast<std::int8_t>(phase)};
      for (int b = 0; b < p_.buffers.size; ++b)
        if (const Buffer& here = p_.buffer(b); here.phase == phase && here.first <= i && i <= here.last)
          peak.buffers[at(b / 64)] |= std::uint64_t{1} << (b % 64);
      bool within = false;
      for (int k = first; k < p_.peaks.size && !within; ++k) within = peak.is_within(p_.peaks[k]);
      if (within) continue;
      int kept = first;
      for (int k = first; k < p_.peaks.size; ++k)
        if (!p_.peaks[k].is_within(peak)) p_.peaks[kept++] = p_.peaks[k];
      p_.peaks.size = kept;
      p_.peaks.push(peak);
    }
  }
  constexpr void push(int b, int (&top)[2]) {
    const auto lasts = [&](int t) { return t < 0 || buffer(t).last >= buffer(b).last; };
    int end = 0;
    if (!lasts(top[0])) {
      end = 1;
      if (!lasts(top[1])) {
        end = buffer(top[0]).last >= buffer(top[1]).last ? 0 : 1;
        for (int t = top[end]; t >= 0 && buffer(t).last < buffer(b).last; t = buffer(t).below)
          buffer(t).last = buffer(b).last;
      }
    }
    buffer(b).high = end == 1;
    buffer(b).below = static_cast<std::int16_t>(top[end]);
    top[end] = b;
  }
  [[nodiscard]] constexpr bool comes_before(int b, int other) const {
    const Buffer& mine = p_.buffer(b);
    const Buffer& its = p_.buffer(other);
    return std::tuple(mine.first, its.last, b) < std::tuple(its.first, mine.last, other);
  }

  LayerProgram& p_;
};

}  // namespace detail

constexpr void allocate_frames(LayerProgram& program) { detail::Allocation{program}; }

/// Bytes of the frame of a phase: the largest sum of what lives at one step.
/// @param bytes  bytes(buffer) of a buffer
template <class BytesOf>
constexpr std::int64_t frame_bytes(const LayerProgram& program, Phase phase, const BytesOf& bytes) {
  std::int64_t most = 0;
  for (const FramePeak& peak : program.peaks) {
    if (peak.phase != static_cast<int>(phase)) continue;
    std::int64_t sum = 0;
    for (int word = 0; word < most_buffers / 64; ++word)
      for (std::uint64_t left = peak.buffers[static_cast<std::size_t>(word)]; left != 0; left &= left - 1)
        sum += bytes(program.buffer(64 * word + std::countr_zero(left)));
    if (most < sum) most = sum;
  }
  return most;
}

/// The same with scratch of steps.
/// @param extra  extra(step): scratch that a step takes beyond its buffers
template <class BytesOf, class Extra>
constexpr std::int64_t frame_bytes(const LayerProgram& program, Phase phase, const BytesOf& bytes, const Extra& extra) {
  const LayerProgram::Steps& steps = program.steps(phase);
  std::array<std::int64_t, LayerProgram::most_steps> sums{};
  for (int i = 0; i < steps.size; ++i) sums[static_cast<std::size_t>(i)] = extra(steps[i]);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.phase != static_cast<int>(phase)) continue;
    const std::int64_t size = bytes(buffer);
    for (int i = buffer.first; i <= buffer.last; ++i) sums[static_cast<std::size_t>(i)] += size;
  }
  return *std::max_element(sums.begin(), sums.end());
}

/// Where a buffer of a frame begins, in bytes from the frame's start.
/// @param frame  bytes of the frame
template <class BytesOf>
constexpr std::int64_t frame_offset(const LayerProgram& program, int buffer, std::int64_t frame, const BytesOf& bytes) {
  std::int64_t below = 0;
  for (int b = program.buffer(buffer).below; b >= 0; b = program.buffer(b).below) below += bytes(program.buffer(b));
  return program.buffer(buffer).high ? frame - below - bytes(program.buffer(buffer)) : below;
}

}  // namespace galvatron::program
