// Verification of a program, from its steps and buffers alone: it knows nothing of how lowering made them.
//
// The contents of every buffer are followed step by step. A step may only read values that some step wrote and that
// none has overwritten since; buffers of a frame that live at one step never overlap; what leaves the layer is written.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>

namespace galvatron::program {

namespace detail {

class Verification {
 public:
  explicit Verification(const LayerProgram& program)
      : p_(program), held_(static_cast<std::size_t>(program.buffers.size)) {}

  std::string run() {
    hold(p_.inputs);
    check(Phase::forward);
    for (const int v : p_.outputs)
      if (v >= 0 && !holds(v)) say("forward does not write what the layer gives");
    hold(p_.output_gradients);
    check(Phase::backward);
    for (const int v : p_.input_gradients)
      if (v >= 0 && !holds(v)) say("backward does not leave the gradient of an input");
    forget(Storage::gradient);  // it goes on to the layer before
    check(Phase::weights);
    return found_;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  void say(const std::string& what) {
    if (found_.empty()) found_ = what;
  }
  // Values of a border that come from outside.
  template <class Values>
  void hold(const Values& values) {
    for (const int v : values)
      if (v >= 0) held_[at(p_.value(v).buffer)] = {v};
  }
  [[nodiscard]] bool holds(int v) const { return held_[at(p_.value(v).buffer)].contains(v); }
  void forget(Storage storage) {
    for (int b = 0; b < p_.buffers.size; ++b)
      if (p_.buffer(b).storage == storage) held_[at(b)].clear();
  }

  void check(Phase phase) {
    phase_ = static_cast<int>(phase);
    const LayerProgram::Steps& steps = p_.steps(phase);
    for (int i = 0; i < steps.size; ++i) {
      at_ = i;
      check(steps[i]);
      check_frame(i);
    }
    forget(Storage::frame);
  }
  [[nodiscard]] std::string here() const {
    return " (phase " + std::to_string(phase_) + ", step " + std::to_string(at_) + ")";
  }
  void check(const Step& step) {
    for (const int v : step.in) {
      if (v < 0) continue;
      in_frame(v);
      if (!holds(v)) say("value " + std::to_string(v) + " is read and not there" + here());
    }
    for (const int v : step.scratch) {
      if (v < 0) continue;
      in_frame(v);
      for (const int read : step.in)
        if (read >= 0 && p_.value(read).buffer == p_.value(v).buffer) say("scratch lies on an operand" + here());
      held_[at(p_.value(v).buffer)].clear();
    }
    std::set<int> written;
    for (const int v : step.out) {
      if (v < 0) continue;
      in_frame(v);
      const int buffer = p_.value(v).buffer;
      if (!written.insert(buffer).second) say("two results lie in one buffer" + here());
      std::set<int>& now = held_[at(buffer)];
      const bool keeps_part = step.code == Code::all_gather && step.in[0] >= 0 && p_.value(step.in[0]).buffer == buffer;
      overwrite(buffer);
      if (keeps_part) now.insert(step.in[0]);
      now.insert(v);
    }
  }
  // Also what lies at the same place of the border.
  void overwrite(int buffer) {
    const Buffer& written = p_.buffer(buffer);
    for (int b = 0; b < p_.buffers.size; ++b)
      if (b == buffer || (written.storage == Storage::gradient && p_.buffer(b).storage == Storage::gradient &&
                          p_.buffer(b).part == written.part))
        held_[at(b)].clear();
  }
  void in_frame(int v) {
    const Buffer& b = p_.buffer_of(v);
    if (b.storage == Storage::frame && (b.phase != phase_ || at_ < b.first || at_ > b.last))
      say("value " + std::to_string(v) + " is used outside of its buffer's life" + here());
  }
  // With sizes that tell buffers apart.
  void check_frame(int i) {
    const auto bytes = [this](const Buffer& b) {
      const auto index = &b - p_.buffers.begin();
      return std::int64_t{64} * (1 + (index * 37) % 101);
    };
    const std::int64_t frame = frame_bytes(p_, static_cast<Phase>(phase_), bytes);
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (int b = 0; b < p_.buffers.size; ++b) {
      const Buffer& buffer = p_.buffer(b);
      if (buffer.phase != phase_ || i < buffer.first || i > buffer.last) continue;
      const std::int64_t first = frame_offset(p_, b, frame, bytes);
      const std::int64_t last = first + bytes(buffer);
      if (first < 0 || last > frame) say("a buffer lies outside of its frame" + here());
      for (const auto& [from, to] : taken)
        if (first < to && from < last) say("two live buffers overlap" + here());
      taken.emplace_back(first, last);
    }
  }

  const LayerProgram& p_;
  std::vector<std::set<int>> held_;  ///< by buffer: the values that lie there
  std::string found_;
  int phase_ = 0;
  int at_ = 0;
};

}  // namespace detail

/// What is wrong with a program, in words; empty when nothing is.
inline std::string why_wrong(const LayerProgram& program) { return detail::Verification(program).run(); }

}  // namespace galvatron::program
