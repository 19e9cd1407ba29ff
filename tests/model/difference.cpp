#include <galvatron/model/difference.hpp>

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/zoo.hpp>

using namespace galvatron;

namespace {

/// Another value of a field.
template <class T>
void change(T& value) {
  if constexpr (std::is_same_v<T, bool>)
    value = !value;
  else if constexpr (std::is_same_v<T, TokenRatio>)
    value.whole += 3;
  else if constexpr (std::is_same_v<T, BundlePlace>)
    value.before[1] = value.after[1] = {all_tokens, 64 + value.before[1].width};
  else if constexpr (std::is_enum_v<T>)
    value = value == T{} ? static_cast<T>(1) : T{};
  else
    value += static_cast<T>(1);
}

}  // namespace

TEST_CASE("models with other names and the same layers do not differ") {
  ModelSpec model = find_model("llama-tiny").value();
  model.name = "another";
  CHECK_FALSE(first_difference(model, find_model("llama-tiny").value()).has_value());
}

TEST_CASE("every field of a layer that changes is found, by a name of its own and with both values") {
  const ModelSpec model = find_model("llama-tiny").value();
  std::vector<std::string> names;
  const auto check = [&](auto field) {
    ModelSpec other = model;
    change(other.blocks[0].*field);
    const auto difference = first_difference(other, model);
    REQUIRE(difference.has_value());
    CHECK(difference->first != difference->second);
    for (const std::string& name : names) CHECK(name != difference->field);
    names.push_back(difference->field);
    other.blocks[0] = model.blocks[0];
    change(other.blocks[2].*field);
    CHECK(first_difference(other, model)->field == names.back() + " of layer 2");
    other.blocks[2] = model.blocks[2];
    change(other.head.*field);
    CHECK(first_difference(other, model)->field == names.back() + " of the head");
  };
  using L = LayerSpec;
  const auto all = [&](auto... fields) { (check(fields), ...); };
  all(&L::kind, &L::hidden, &L::heads, &L::kv_heads, &L::head_dim, &L::ffn, &L::vocabulary, &L::positions, &L::norm,
      &L::activation, &L::position, &L::bias, &L::causal, &L::tied, &L::rope_theta, &L::norm_epsilon, &L::layers,
      &L::tokens, &L::memory, &L::target, &L::norm_order, &L::closing_norm, &L::window, &L::shift, &L::bias_rows,
      &L::merges, &L::qkv_bias, &L::query_key_norm, &L::experts, &L::active_experts, &L::shared_ffn, &L::shared_gate,
      &L::patch_width, &L::class_token, &L::token_types, &L::rotary_dim, &L::score_width, &L::sliding_window,
      &L::score_cap, &L::logits_cap, &L::parallel, &L::embedding_scale, &L::logits_bias, &L::head, &L::loss_weight,
      &L::frozen, &L::place);
  const auto check_within = [&](auto whole, auto field) {
    ModelSpec other = model;
    change(other.blocks[1].*whole.*field);
    const auto difference = first_difference(other, model);
    REQUIRE(difference.has_value());
    CHECK(difference->first != difference->second);
    for (const std::string& name : names) CHECK(name + " of layer 1" != difference->field);
    names.push_back(difference->field.substr(0, difference->field.size() - 11));
  };
  using A = LatentAttention;
  const auto all_within = [&](auto whole, auto... fields) { (check_within(whole, fields), ...); };
  all_within(&L::latent, &A::rank, &A::query_rank, &A::rotary_dim, &A::value_dim, &A::norm_epsilon);
  using Adapters = AdapterSpec;
  all_within(&L::adapters, &Adapters::rank, &Adapters::alpha, &Adapters::query, &Adapters::key, &Adapters::value,
             &Adapters::fused_qkv, &Adapters::attention_out, &Adapters::gate, &Adapters::up, &Adapters::down);
  using S = RotaryScaling;
  all_within(&L::rotary_scaling, &S::ramp, &S::factor, &S::positions, &S::fast, &S::slow, &S::amplitude,
             &S::score_rate);
  using R = RouterSpec;
  all_within(&L::router, &R::kind, &R::renormalise, &R::scale, &R::groups, &R::top_groups, &R::balance_loss,
             &R::balance_scope, &R::z_loss, &R::bias_rate, &R::capacity, &R::drops, &R::jitter);
  ModelSpec deeper = model;
  deeper.blocks.push_back(deeper.blocks.back());
  CHECK(first_difference(deeper, model)->field == "number of layers");
}

TEST_CASE("values are told as config files have them") {
  const ModelSpec model = find_model("llama-tiny").value();
  ModelSpec other = model;
  other.blocks[0].norm_epsilon = 1e-6;
  CHECK(first_difference(other, model)->first == "1e-06");
  CHECK(first_difference(other, model)->second == "1e-05");
  other = model;
  other.blocks[0].activation = ActivationKind::relu;
  CHECK(first_difference(other, model)->first == "relu");
  CHECK(first_difference(other, model)->second == "swiglu");
  other = model;
  other.blocks[0].tied = true;
  CHECK(first_difference(other, model)->first == "true");
}
