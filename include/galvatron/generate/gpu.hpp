// A LanguageModel on a GPU.
#pragma once

#include <galvatron/generate/language_model.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/rank/gpu_world.hpp>

namespace galvatron::generate {

/// Calls use(LanguageModel&), on a thread of its own, with a model in fp32 or bf16 on GPU `ordinal`. Throws as
/// RankLanguageModel does, and what `use` throws.
inline void with_gpu_language_model(const ModelSpec& model, const Capacity& capacity,
                                    const runtime::ParameterSource& source, Precision precision, int ordinal,
                                    const auto& use) {
  const auto rank = [&](comm::World& world, const train::CudaPlatform& platform) {
    with_language_model(world, platform, model, capacity, source, precision, use);
  };
  train::detail::on_one_gpu(1, ordinal, {}, train::with_platform(rank));
}

}  // namespace galvatron::generate
