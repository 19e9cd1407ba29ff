// 06: a layer of one's own, written as its forward pass. Needs galvatron::trainer (oneDNN, OpenMP).
//
//   example_06_own_layer [FILE...]      any text; every byte is a token
#include <cstdio>
#include <filesystem>
#include <vector>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;

// y = x + attention(n) + (gelu(n A^T) * n B^T) C^T with n = norm(x): both branches beside each other, as in PaLM.
forward::Graph parallel_block(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = b.whole(l.hidden);
  const forward::Width f = b.split(l.ffn);  // divided over tensor-parallel ranks
  const forward::Tensor x = b.input(h);
  const forward::Tensor n =
      b.norm(x, b.vector(user_parameter(0), h, ParameterInit::one), b.vector(user_parameter(1), h));
  const forward::Tensor gate = b.activation(ActivationKind::gelu, b.linear(n, b.weight(user_parameter(2), f, h)), f);
  const forward::Tensor up = b.linear(n, b.weight(user_parameter(3), f, h));
  const forward::Tensor mlp = b.linear(b.multiply(gate, up), b.weight(user_parameter(4), h, f));
  b.output(b.add(b.add(x, self_attention(b, l, n)), mlp));
  return b.graph();
}

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> files(argv + 1, argv + argc);
  if (files.empty()) files = {"/usr/share/common-licenses/GPL-3"};
  ModelSpec model = value_or_throw(find_model("gpt2-tiny"));
  for (LayerSpec& block : model.blocks) block.forward_pass = parallel_block;

  using Split = Strategy<ZeRO<2>, TensorParallel<2>, SequenceParallel<megatron>, Pipeline<2, ScheduleKind::zb_h1>>;
  const Plan plan = value_or_throw(uniform_plan(Split({.data = 2}), model, {.global_batch = 16, .sequence = 64}));
  const auto report = value_or_throw(
      train::fit(plan, model, files, {.steps = 40, .learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = 4}}));
  std::printf("loss %.3f -> %.3f\n", report.steps.front().loss, report.steps.back().loss);
  std::printf("rank 0 planned %s, used %s\n", format_bytes(report.planned_memory.front().total()).c_str(),
              format_bytes(report.measured_memory.front().total()).c_str());
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
