// 08: train on documents of any length, packed, with sequence-parallel groups that every batch chooses anew.
#include <cstdio>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;

// Up to 4 ranks share a document's tokens, and all of them every parameter.
using Groups = Strategy<SequenceParallel<ulysses>, ContextParallel<4>, ZeRO<3>, SequenceGroups<per_batch>>;

int main(int argc, char** argv) try {
  const ModelSpec model =
      llama("llama",
            {.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocabulary = 256, .positions = 1024});
  const UniformOptions documents{.global_batch = 24, .sequence = 1024, .packed = true};  // 256 tokens a rank
  const Plan plan = value_or_throw(uniform_plan(Groups({.data = 1}), model, documents));
  train::TrainOptions options{.steps = 20, .learning_rate = {.peak = 1e-3, .floor = 1e-4}};
  options.on_step = [](const train::StepReport& step) {
    std::printf("step %2d  loss %.3f  %5d tokens, %2d of padding, groups %s\n", static_cast<int>(step.step) + 1,
                step.loss, static_cast<int>(step.tokens), static_cast<int>(step.packed->padding),
                step.packed->groups.c_str());
  };
  const char* file = argc > 1 ? argv[1] : "/usr/share/common-licenses/GPL-3";  // paragraphs are documents
  const auto report =
      value_or_throw(train::fit<Groups>(plan, model, {file}, options, {.separator = "\n\n", .skip_empty = true}));
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
