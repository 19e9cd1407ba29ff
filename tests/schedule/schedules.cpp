// Pipeline programs: complete, in order, free of deadlock, and within their memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <galvatron/schedule/schedule.hpp>

#include "instructions.hpp"

using namespace galvatron;
using namespace galvatron::schedule;

namespace {

using Lists = std::vector<instructions::List>;

Lists lists_of(ScheduleKind kind, int stages, int microbatches, int virtual_stages = 1) {
  return instructions::of(value_or_throw(make_program(kind, stages, microbatches, virtual_stages)));
}

struct Shape {
  ScheduleKind kind = ScheduleKind::gpipe;
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;
};

// Calls check(program, shape) for all small pipelines.
template <class Check>
void for_all_programs(Check&& check) {
  for (const ScheduleKind kind : schedule_kinds)
    for (int stages = 1; stages <= 8; ++stages)
      for (int m = 1; m <= 16; ++m)
        for (int chunks = 1; chunks <= (kind == ScheduleKind::interleaved ? 3 : usual_virtual_stages(kind)); ++chunks)
          if (stage_program(kind, stages, 0, m, chunks))
            check(lists_of(kind, stages, m, chunks), Shape{kind, stages, m, chunks});
}

// The executor's rules with no times: a token is a micro-batch in one of the buffers between two virtual stages.
struct Tokens {
  struct Buffer {
    bool full = false;
    int microbatch = -1;
  };
  explicit Tokens(const Lists& p, int chunks = 1, ScheduleKind own = ScheduleKind::one_f_one_b)
      : program(p),
        kind(own),
        next(p.size(), 0),
        activation(p.size() * static_cast<std::size_t>(chunks * message_buffers(own))),
        gradient(activation.size()) {}

  const Lists& program;
  ScheduleKind kind;
  std::vector<std::size_t> next;
  std::vector<Buffer> activation;  // sent by virtual stage k to k + 1
  std::vector<Buffer> gradient;    // sent by virtual stage k to k - 1
  std::string trouble;

  // One instruction of stage s, if it may run.
  bool step(std::size_t s) {
    if (next[s] == program[s].size()) return false;
    const Instruction& instruction = program[s][next[s]];
    const int v = virtual_stage_of(kind, static_cast<int>(program.size()), static_cast<int>(s), instruction.chunk);
    const auto of = [&](std::vector<Buffer>& buffers, int sender) -> Buffer& {
      const int each = message_buffers(kind);
      return buffers.at(static_cast<std::size_t>(sender * each + instruction.microbatch % each));
    };
    const auto take = [&](Buffer& buffer) {
      if (!buffer.full) return false;
      if (buffer.microbatch != instruction.microbatch) trouble = "a receive meets another micro-batch";
      buffer.full = false;
      return true;
    };
    switch (instruction.op) {
      case Op::receive_activation:
        if (!take(of(activation, v - 1))) return false;
        break;
      case Op::receive_gradient:
        if (!take(of(gradient, v + 1))) return false;
        break;
      case Op::forward:
        if (of(activation, v).full) return false;
        break;
      case Op::backward:
      case Op::backward_input:
        if (of(gradient, v).full) return false;
        break;
      case Op::send_activation:
        of(activation, v) = {true, instruction.microbatch};
        break;
      case Op::send_gradient:
        of(gradient, v) = {true, instruction.microbatch};
        break;
      default:
        break;
    }
    ++next[s];
    return true;
  }
  bool ended() const {
    for (std::size_t s = 0; s < program.size(); ++s)
      if (next[s] < program[s].size()) return false;
    return std::none_of(activation.begin(), activation.end(), [](const Buffer& b) { return b.full; }) &&
           std::none_of(gradient.begin(), gradient.end(), [](const Buffer& b) { return b.full; });
  }
};

}  // namespace

TEST_CASE("every micro-batch goes forward and backward once on every chunk, in order") {
  for_all_programs([](const Lists& program, const Shape& shape) {
    const auto [kind, stages, m, chunks] = shape;
    REQUIRE(static_cast<int>(program.size()) == stages);
    for (int s = 0; s < stages; ++s) {
      const auto& own = program[static_cast<std::size_t>(s)];
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const bool first = virtual_stage_of(kind, stages, s, chunk) == 0;
        const bool last = virtual_stage_of(kind, stages, s, chunk) + 1 == stages * chunks;
        std::vector<int> count(10, 0);
        for (const Instruction& instruction : own) {
          if (instruction.op == Op::reduce_gradients || instruction.op == Op::step) continue;
          if (instruction.chunk != chunk) continue;
          int& seen = count[static_cast<std::size_t>(instruction.op)];
          REQUIRE(instruction.microbatch == seen);
          ++seen;
          const auto of = [&](Op op) { return count[static_cast<std::size_t>(op)]; };
          const int backwards = of(Op::backward) + of(Op::backward_input);
          REQUIRE(backwards <= of(Op::forward));
          REQUIRE(of(Op::backward_weight) <= of(Op::backward_input));
          if (!first) {
            REQUIRE(of(Op::forward) <= of(Op::receive_activation));
            REQUIRE(of(Op::send_gradient) <= backwards);
          }
          if (!last) {
            REQUIRE(backwards <= of(Op::receive_gradient));
            REQUIRE(of(Op::send_activation) <= of(Op::forward));
          }
        }
        const int in = first ? 0 : m, out = last ? 0 : m;
        const int split = splits_backward(kind) ? m : 0;
        REQUIRE(count == std::vector<int>{in, m, out, out, m - split, split, split, in, 0, 0});
      }
      REQUIRE(own[own.size() - 2].op == Op::reduce_gradients);
      REQUIRE(own.back().op == Op::step);
    }
  });
}

TEST_CASE("stages never wait for each other in a circle, whichever runs first") {
  for_all_programs([](const Lists& program, const Shape& shape) {
    const int stages = shape.stages;
    for (const int order : {1, -1}) {
      Tokens tokens(program, shape.chunks, shape.kind);
      for (bool progress = true; progress;) {
        progress = false;
        for (int i = 0; i < stages; ++i) {
          const auto s = static_cast<std::size_t>(order > 0 ? i : stages - 1 - i);
          while (tokens.step(s)) progress = true;
        }
      }
      CAPTURE(name_of(shape.kind));
      CAPTURE(stages);
      CAPTURE(shape.microbatches);
      CAPTURE(shape.chunks);
      REQUIRE(tokens.trouble.empty());
      REQUIRE(tokens.ended());
    }
  });
}

TEST_CASE("the tokens find a deadlock and a wrong order when there is one") {
  Lists program = lists_of(ScheduleKind::one_f_one_b, 2, 2);
  std::swap(program[0][0], program[0][4]);  // stage 0 begins with a receive_gradient
  REQUIRE(program[0][0].op == Op::receive_gradient);
  Tokens stuck(program);
  for (int i = 0; i < 100; ++i)
    for (std::size_t s = 0; s < 2; ++s) stuck.step(s);
  CHECK_FALSE(stuck.ended());

  program = lists_of(ScheduleKind::one_f_one_b, 2, 2);
  program[0][1].microbatch = 1;
  Tokens crossed(program);
  for (int i = 0; i < 100; ++i)
    for (std::size_t s = 0; s < 2; ++s) crossed.step(s);
  CHECK_FALSE(crossed.trouble.empty());
}

TEST_CASE("as many stashes as in_flight says are held at once, and no more") {
  for_all_programs([](const Lists& program, const Shape& shape) {
    const auto [kind, stages, m, chunks] = shape;
    for (int s = 0; s < stages; ++s)
      for (int chunk = 0; chunk < chunks; ++chunk) {
        int held = 0, peak = 0, late = 0, most_late = 0;
        for (const Instruction& instruction : program[static_cast<std::size_t>(s)]) {
          if (instruction.chunk != chunk) continue;
          const bool frees = instruction.op == Op::backward || instruction.op == Op::backward_weight;
          held += instruction.op == Op::forward ? 1 : frees ? -1 : 0;
          peak = std::max(peak, held);
          late += instruction.op == Op::backward_input ? 1 : instruction.op == Op::backward_weight ? -1 : 0;
          most_late = std::max(most_late, late);
        }
        CAPTURE(name_of(kind));
        CAPTURE(stages);
        CAPTURE(m);
        CAPTURE(s);
        CAPTURE(chunk);
        REQUIRE(held == 0);
        const int in_flight = microbatches_in_flight(kind, stages, s, m, chunks, chunk);
        const int deferred = microbatches_deferred(kind, s, m, chunk);
        if (kind != ScheduleKind::zb_v || m >= 2 * stages - 1) {
          REQUIRE(peak == in_flight);
          REQUIRE(most_late == deferred);
        } else {  // there are gaps
          REQUIRE(peak <= in_flight);
          REQUIRE(most_late <= deferred);
        }
      }
  });
  static_assert(microbatches_in_flight(ScheduleKind::gpipe, 4, 0, 16) == 16);
  static_assert(microbatches_in_flight(ScheduleKind::one_f_one_b, 4, 0, 16) == 4);
  static_assert(microbatches_in_flight(ScheduleKind::one_f_one_b, 4, 3, 16) == 1);
  static_assert(microbatches_in_flight(ScheduleKind::one_f_one_b, 4, 0, 2) == 2);
}

TEST_CASE("1F1B on the middle of three stages is what the drawing shows") {
  const Lists program = lists_of(ScheduleKind::one_f_one_b, 3, 4);
  std::string drawn;
  for (const Instruction& instruction : program[1]) {
    if (instruction.op == Op::forward) drawn += static_cast<char>('0' + instruction.microbatch);
    if (instruction.op == Op::backward) drawn += static_cast<char>('a' + instruction.microbatch);
  }
  CHECK(drawn == "01a2b3cd");
}

// Of each stage: digits are forwards, small letters backwards, capital ones weight gradients; second chunks are marked.
std::vector<std::string> drawn(const Lists& program) {
  std::vector<std::string> out;
  for (const instructions::List& stage : program) {
    std::string& own = out.emplace_back();
    for (const Instruction& instruction : stage) {
      const char first = instruction.op == Op::forward           ? '0'
                         : instruction.op == Op::backward_input  ? 'a'
                         : instruction.op == Op::backward_weight ? 'A'
                                                                 : '\0';
      if (first == '\0') continue;
      own += static_cast<char>(first + instruction.microbatch);
      if (instruction.chunk == 1) own += '\'';
    }
  }
  return out;
}

TEST_CASE("zero-bubble schedules on three stages are what the drawings show") {
  CHECK(drawn(lists_of(ScheduleKind::zb_h1, 3, 4)) ==
        std::vector<std::string>{"012aA3bBcCdD", "01a2bA3cBdCD", "0a1b2cA3dBCD"});
  CHECK(drawn(lists_of(ScheduleKind::zb_2p, 3, 6)) ==
        std::vector<std::string>{"01234aA5bBcCdDeEfF", "012a3b4cA5dBeCfDEF", "0a1b2c3d4eA5fBCDEF"});
  CHECK(drawn(lists_of(ScheduleKind::zb_v, 3, 6, 2)) ==
        std::vector<std::string>{"012340'a'A'1'b'B'2'c'C'5aA3'd'D'bB4'e'E'cC5'f'F'dDeEfF",
                                 "0120'31'a'A'2'b'B'4aA3'c'C'5bB4'd'D'cC5'e'E'df'eDfEF'F",
                                 "00'11'22'a'A'3aA3'b'B'4bB4'c'C'5cC5'd'D'de'ef'fDE'F'EF"});
}

TEST_CASE("interleaved 1F1B runs groups of P micro-batches through the chunks in turn") {
  const Lists program = lists_of(ScheduleKind::interleaved, 2, 4, 2);
  std::string drawn;  // small letters: backwards; a second chunk is marked
  for (const Instruction& instruction : program[1]) {
    if (instruction.op == Op::forward) drawn += static_cast<char>('0' + instruction.microbatch);
    if (instruction.op == Op::backward) drawn += static_cast<char>('a' + instruction.microbatch);
    if (instruction.op == Op::forward || instruction.op == Op::backward) drawn += instruction.chunk == 1 ? "'" : "";
  }
  CHECK(drawn == "010'a'1'b'2a3b2'c'3'd'cd");
}

TEST_CASE("schedules have names, and what has no program is refused") {
  for (const ScheduleKind kind : schedule_kinds) CHECK(schedule_named(name_of(kind)) == kind);
  CHECK_FALSE(schedule_named("1F1B").has_value());
  CHECK(make_program(ScheduleKind::gpipe, 0, 4).error().message ==
        "a pipeline needs at least 1 stage, 1 micro-batch and 1 virtual stage, not 0, 4 and 1");
  CHECK_FALSE(make_program(ScheduleKind::one_f_one_b, 2, 0).has_value());
  CHECK(make_program(ScheduleKind::one_f_one_b, 2, 4, 2).error().message ==
        "schedule 1f1b has 1 virtual stage, not 2: choose interleaved");
  CHECK(make_program(ScheduleKind::zb_v, 1, 4, 2).error().message ==
        "schedule zb-v has at least 2 stages of 2 virtual ones, not 1 of 2");
  CHECK_FALSE(make_program(ScheduleKind::zb_v, 4, 4, 1).has_value());
  CHECK(make_program(ScheduleKind::interleaved, 4, 6, 2).error().message ==
        "the interleaved schedule needs at least 2 stages and a multiple of them as micro-batches, not 4 and 6");
  CHECK_FALSE(make_program(ScheduleKind::interleaved, 1, 6, 2).has_value());
}

TEST_CASE("a stage's program does not grow with the micro-batches") {
  for (const ScheduleKind kind : schedule_kinds)
    for (int s = 0; s < 4; ++s) {
      const StageProgram stage = *stage_program(kind, 4, s, 8, usual_virtual_stages(kind));
      REQUIRE(size_of(stage) == static_cast<std::int64_t>(instructions::of(stage).size()));
    }
  for (const ScheduleKind kind : schedule_kinds)
    for (int s = 0; s < 8; ++s) {
      const int chunks = kind == ScheduleKind::interleaved ? 3 : usual_virtual_stages(kind);
      const StageProgram few = *stage_program(kind, 8, s, 800, chunks);
      const StageProgram many = *stage_program(kind, 8, s, 1'000'000'000, chunks);
      REQUIRE(few.size() == many.size());
      std::size_t kept = 0;
      for (std::size_t i = 0; i < few.size(); ++i) {
        REQUIRE(few[i].once.size() == many[i].once.size());
        kept += many[i].once.size();
      }
      CHECK(kept < 1000);
      // As many of each micro-batch, and two at the end of the step.
      CHECK(size_of(many) - 2 == (size_of(few) - 2) / 800 * 1'000'000'000);
      int last = -1;
      for (const Block& block : many)
        if (block.repeats > 0 && !block.once.empty())
          last = std::max(last, block.at(block.repeats - 1, block.once.size() - 1).microbatch);
      CHECK(last == 999'999'999);
    }
}
