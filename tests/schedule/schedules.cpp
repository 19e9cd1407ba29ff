// Pipeline programs: complete, in order, free of deadlock, and within their memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <galvatron/schedule/schedule.hpp>

using namespace galvatron;
using namespace galvatron::schedule;

namespace {

const ScheduleKind kinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b};

// Calls check(program, kind, P, m) for all small pipelines.
template <class Check>
void for_all_programs(Check&& check) {
  for (const ScheduleKind kind : kinds)
    for (int stages = 1; stages <= 8; ++stages)
      for (int m = 1; m <= 16; ++m) check(*make_program(kind, stages, m), kind, stages, m);
}

// The executor's rules with no times: a token is a micro-batch in one of the buffers between two stages.
struct Tokens {
  struct Buffer {
    bool full = false;
    int microbatch = -1;
  };
  explicit Tokens(const Program& p) : program(p), next(p.size(), 0), activation(p.size()), gradient(p.size()) {}

  const Program& program;
  std::vector<std::size_t> next;
  std::vector<Buffer> activation;  // sent by stage s to s + 1
  std::vector<Buffer> gradient;    // sent by stage s to s - 1
  std::string trouble;

  // One instruction of stage s, if it may run.
  bool step(std::size_t s) {
    if (next[s] == program[s].size()) return false;
    const Instruction& instruction = program[s][next[s]];
    const auto take = [&](Buffer& buffer) {
      if (!buffer.full) return false;
      if (buffer.microbatch != instruction.microbatch) trouble = "a receive meets another micro-batch";
      buffer.full = false;
      return true;
    };
    switch (instruction.op) {
      case Op::receive_activation:
        if (!take(activation[s - 1])) return false;
        break;
      case Op::receive_gradient:
        if (!take(gradient[s + 1])) return false;
        break;
      case Op::forward:
        if (activation[s].full) return false;
        break;
      case Op::backward:
        if (gradient[s].full) return false;
        break;
      case Op::send_activation:
        activation[s] = {true, instruction.microbatch};
        break;
      case Op::send_gradient:
        gradient[s] = {true, instruction.microbatch};
        break;
      default:
        break;
    }
    ++next[s];
    return true;
  }
  bool ended() const {
    for (std::size_t s = 0; s < program.size(); ++s)
      if (next[s] < program[s].size() || activation[s].full || gradient[s].full) return false;
    return true;
  }
};

}  // namespace

TEST_CASE("every micro-batch goes forward and backward once on every stage, in order") {
  for_all_programs([](const Program& program, ScheduleKind, int stages, int m) {
    REQUIRE(static_cast<int>(program.size()) == stages);
    for (int s = 0; s < stages; ++s) {
      std::vector<int> count(10, 0);
      for (const Instruction& instruction : program[static_cast<std::size_t>(s)]) {
        int& seen = count[static_cast<std::size_t>(instruction.op)];
        if (instruction.op != Op::reduce_gradients && instruction.op != Op::step)
          REQUIRE(instruction.microbatch == seen);
        ++seen;
        const auto of = [&](Op op) { return count[static_cast<std::size_t>(op)]; };
        REQUIRE(of(Op::backward) <= of(Op::forward));
        if (s > 0) {
          REQUIRE(of(Op::forward) <= of(Op::receive_activation));
          REQUIRE(of(Op::send_gradient) <= of(Op::backward));
        }
        if (s + 1 < stages) {
          REQUIRE(of(Op::backward) <= of(Op::receive_gradient));
          REQUIRE(of(Op::send_activation) <= of(Op::forward));
        }
      }
      const int first = s > 0 ? m : 0, last = s + 1 < stages ? m : 0;
      REQUIRE(count == std::vector<int>{first, m, last, last, m, 0, 0, first, 1, 1});
      const auto& own = program[static_cast<std::size_t>(s)];
      REQUIRE(own[own.size() - 2].op == Op::reduce_gradients);
      REQUIRE(own.back().op == Op::step);
    }
  });
}

TEST_CASE("stages never wait for each other in a circle, whichever runs first") {
  for_all_programs([](const Program& program, ScheduleKind kind, int stages, int m) {
    for (const int order : {1, -1}) {
      Tokens tokens(program);
      for (bool progress = true; progress;) {
        progress = false;
        for (int i = 0; i < stages; ++i) {
          const auto s = static_cast<std::size_t>(order > 0 ? i : stages - 1 - i);
          while (tokens.step(s)) progress = true;
        }
      }
      CAPTURE(name_of(kind));
      CAPTURE(stages);
      CAPTURE(m);
      REQUIRE(tokens.trouble.empty());
      REQUIRE(tokens.ended());
    }
  });
}

TEST_CASE("the tokens find a deadlock and a wrong order when there is one") {
  Program program = one_forward_one_backward(2, 2);
  std::swap(program[0][0], program[0][4]);  // stage 0 begins with a receive_gradient
  REQUIRE(program[0][0].op == Op::receive_gradient);
  Tokens stuck(program);
  for (int i = 0; i < 100; ++i)
    for (std::size_t s = 0; s < 2; ++s) stuck.step(s);
  CHECK_FALSE(stuck.ended());

  program = one_forward_one_backward(2, 2);
  program[0][1].microbatch = 1;
  Tokens crossed(program);
  for (int i = 0; i < 100; ++i)
    for (std::size_t s = 0; s < 2; ++s) crossed.step(s);
  CHECK_FALSE(crossed.trouble.empty());
}

TEST_CASE("as many stashes as in_flight says are held at once, and no more") {
  for_all_programs([](const Program& program, ScheduleKind kind, int stages, int m) {
    for (int s = 0; s < stages; ++s) {
      int held = 0, peak = 0;
      for (const Instruction& instruction : program[static_cast<std::size_t>(s)]) {
        held += instruction.op == Op::forward ? 1 : instruction.op == Op::backward ? -1 : 0;
        peak = std::max(peak, held);
      }
      REQUIRE(held == 0);
      REQUIRE(peak == in_flight(kind, s, stages, m));
    }
  });
  static_assert(in_flight(ScheduleKind::gpipe, 0, 4, 16) == 16);
  static_assert(in_flight(ScheduleKind::one_f_one_b, 0, 4, 16) == 4);
  static_assert(in_flight(ScheduleKind::one_f_one_b, 3, 4, 16) == 1);
  static_assert(in_flight(ScheduleKind::one_f_one_b, 0, 4, 2) == 2);
}

TEST_CASE("1F1B on the middle of three stages is what the drawing shows") {
  const Program program = one_forward_one_backward(3, 4);
  std::string drawn;
  for (const Instruction& instruction : program[1]) {
    if (instruction.op == Op::forward) drawn += static_cast<char>('0' + instruction.microbatch);
    if (instruction.op == Op::backward) drawn += static_cast<char>('a' + instruction.microbatch);
  }
  CHECK(drawn == "01a2b3cd");
}

TEST_CASE("schedules have names, and those without a program are refused with those that have one") {
  for (const ScheduleKind kind : schedule_kinds) CHECK(schedule_named(name_of(kind)) == kind);
  CHECK_FALSE(schedule_named("1F1B").has_value());
  CHECK(available_schedules() == "gpipe, 1f1b");
  for (const ScheduleKind kind : {ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    const auto program = make_program(kind, 2, 4);
    REQUIRE_FALSE(program.has_value());
    CHECK(program.error().kind == ErrorKind::usage);
    CHECK(program.error().message ==
          std::string("schedule ") + name_of(kind) + " is not available; available are: gpipe, 1f1b");
  }
  CHECK(make_program(ScheduleKind::gpipe, 0, 4).error().message ==
        "a pipeline needs at least 1 stage and 1 micro-batch, not 0 and 4");
  CHECK_FALSE(make_program(ScheduleKind::one_f_one_b, 2, 0).has_value());
}
