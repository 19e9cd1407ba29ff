#include <galvatron/model/build.hpp>

#include <string>

#include <doctest/doctest.h>

#include <galvatron/model/check.hpp>
#include <galvatron/model/layers.hpp>

namespace galvatron {
namespace {

const T5Shape small_t5{
    .encoder_layers = 2, .decoder_layers = 3, .hidden = 64, .heads = 4, .ffn = 128, .vocabulary = 100};
const SwinShape swin_large{.depths = {2, 2, 18, 2}, .hidden = 192, .heads = {6, 12, 24, 48}};

std::string why_not(const ModelSpec& model) {
  const auto result = checked(model);
  return result ? "" : result.error().message;
}

TEST_CASE("shapes of published models have the published parameters") {
  // Liu et al., 2021, table 1 and the released weights; Dosovitskiy et al., 2021 (torchvision's vit_b_16).
  CHECK(parameters(swin("swin-l", swin_large)) == 196'532'476);
  CHECK(parameters(swin("swin-t", {.depths = {2, 2, 6, 2}, .hidden = 96, .heads = {3, 6, 12, 24}})) == 28'288'354);
  CHECK(parameters(vit("vit-b", {.layers = 12, .hidden = 768, .heads = 12})) == 86'567'656);
  CHECK(parameters(bert("bert-base", {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522})) == 109'514'298);
  CHECK(parameters(
            t5("t5-base", {.encoder_layers = 12, .decoder_layers = 12, .hidden = 768, .heads = 12, .ffn = 3072})) ==
        222'903'552 + 22 * 32 * 12);  // a table of relative positions in every block, and not in two of 24
}

TEST_CASE("Swin doubles its width and quarters its tokens from stage to stage") {
  const ModelSpec model = swin("swin", swin_large);
  CHECK(why_not(model) == "");
  REQUIRE(model.blocks.size() == 24);
  CHECK(model.positions() == 56 * 56);
  const std::int64_t s = model.positions();
  int merges = 0;
  for (std::size_t i = 1; i < model.blocks.size(); ++i) {
    const LayerSpec& block = model.blocks[i];
    const LayerSpec& before = model.blocks[i - 1];
    merges += block.merges ? 1 : 0;
    CHECK(block.hidden == before.hidden * (block.merges ? 2 : 1));
    CHECK(block.tokens.of(s) * (block.merges ? 4 : 1) == before.tokens.of(s));
    CHECK(block.input_elements(s) == before.output_elements(s));
  }
  CHECK(merges == 3);
  CHECK(model.blocks[0].shift == 0);
  CHECK(model.blocks[1].shift == 3);
  CHECK(model.blocks.back().shift == 0);  // the whole image is one window
  CHECK(model.blocks[0].costs_like(model.blocks[1]));
  CHECK_FALSE(model.blocks[1].costs_like(model.blocks[2]));
  CHECK(model.blocks.back().tokens.of(s) == 49);
  CHECK(model.head.hidden == 8 * 192);
}

TEST_CASE("a small Swin has as many stages as depths, and windows no larger than its images") {
  const ModelSpec model =
      swin("swin", {.depths = {2, 2, 0, 0}, .hidden = 32, .heads = {2, 4, 0, 0}, .image = 12, .patch = 2, .window = 6});
  CHECK(why_not(model) == "");
  REQUIRE(model.blocks.size() == 4);
  CHECK(model.blocks[1].window == 6);
  CHECK(model.blocks[1].shift == 0);
  CHECK(model.blocks[3].window == 3);
  CHECK(model.blocks[3].bias_rows == 25);
  CHECK(model.head.hidden == 64);
  CHECK(model.head.tokens.of(36) == 9);
}

TEST_CASE("every border of T5 carries both sides, and the head takes the target alone") {
  T5Shape shape = small_t5;
  shape.source = 512;
  shape.target = 4;
  const ModelSpec model = t5("t5", shape);
  CHECK(why_not(model) == "");
  CHECK(model.embedding.output_elements(512) == (512 + 4) * 64);
  CHECK(model.embedding.pass_through_elements(512) == 4 * 64);
  for (const LayerSpec& block : model.blocks) {
    CHECK(block.input_elements(512) == (512 + 4) * 64);
    CHECK(block.output_elements(512) == (512 + 4) * 64);
  }
  CHECK(model.blocks[0].pass_through_elements(512) == 4 * 64);
  CHECK(model.blocks[1].place.inputs == std::array<std::int16_t, 2>{0, -1});
  CHECK(model.blocks[2].place.inputs == std::array<std::int16_t, 2>{1, 0});  // the target, and the encoder's output
  CHECK(model.blocks[2].place.arrives == 0);
  CHECK(model.blocks[3].place.inputs == std::array<std::int16_t, 2>{1, 0});
  CHECK(model.blocks[3].place.arrives == 1);
  CHECK(model.blocks[2].pass_through_elements(512) == 4 * 64);
  CHECK(model.blocks[3].pass_through_elements(512) == 512 * 64);
  CHECK(model.blocks[3].tokens.of(512) == 4);
  CHECK(model.head.input_elements(512) == 4 * 64);
}

TEST_CASE("only a block as GPT's and Llama's is plain") {
  CHECK(gpt("gpt", {.layers = 2, .hidden = 64, .heads = 4, .vocabulary = 100, .positions = 32})
            .blocks[0]
            .is_plain_block());
  CHECK(vit("vit", {.layers = 2, .hidden = 64, .heads = 4}).blocks[0].is_plain_block());
  CHECK_FALSE(bert("bert", {.layers = 2, .hidden = 64, .heads = 4, .vocabulary = 100}).blocks[0].is_plain_block());
  for (const LayerSpec& block : t5("t5", small_t5).blocks) CHECK_FALSE(block.is_plain_block());
  for (const LayerSpec& block : swin("swin", swin_large).blocks) CHECK_FALSE(block.is_plain_block());
}

TEST_CASE("mixed models that do not fit together are refused with the layer") {
  ModelSpec model = swin("swin", swin_large);
  model.blocks[2].merges = false;
  CHECK(why_not(model).find("(layer 2): its hidden size, tokens or positions differ") != std::string::npos);
  model = swin("swin", swin_large);
  model.blocks[1].window = 5;
  CHECK(why_not(model).find("(layer 1): square windows divide") != std::string::npos);
  model = swin("swin", swin_large);
  model.blocks[1].shift = 7;
  CHECK(why_not(model).find("(layer 1): windows are shifted by less than their own side") != std::string::npos);
  model = swin("swin", swin_large);
  model.blocks[2].window = 0;
  CHECK(why_not(model).find("(layer 2): a layer that merges tokens has windows") != std::string::npos);
  model = t5("t5", small_t5);
  model.blocks[2].merges = true;
  CHECK(why_not(model).find("(layer 2): a layer with cross attention") != std::string::npos);
  model = t5("t5", small_t5);
  model.head.tokens = {1, 2};
  CHECK(why_not(model).find("(head)") != std::string::npos);
  T5Shape longer = small_t5;
  longer.target = 1024;
  CHECK(why_not(t5("t5", longer)).find("at most all of it") != std::string::npos);
  model = moe("moe", {.dense = {.layers = 1, .hidden = 64, .heads = 4, .ffn = 128, .vocabulary = 100, .positions = 32},
                      .experts = 4,
                      .active_experts = 2});
  CHECK(why_not(model) == "");
  model.blocks[0].active_experts = 5;
  CHECK(why_not(model).find("no more than there are") != std::string::npos);
  model.blocks[0].active_experts = 2;
  model.blocks[0].router.groups = 3;
  CHECK(why_not(model).find("divide the experts") != std::string::npos);
  model.blocks[0].router = {.groups = 4};  // of one expert each, of which a token goes to one
  CHECK(why_not(model).find("as many experts as it goes to") != std::string::npos);
  model.blocks[0].router = {.scale = 0};
  CHECK(why_not(model).find("the weights of experts have a positive scale") != std::string::npos);
  model.blocks[0].router = {};
  model.blocks[0].shared_gate = true;
  CHECK(why_not(model).find("only where there is one it has a gate") != std::string::npos);
  model = vit("vit", {.layers = 1, .hidden = 64, .heads = 4});
  model.head.tied = true;
  CHECK(why_not(model).find("cannot use the embedding's table") != std::string::npos);
}

TEST_CASE("norms of queries and keys and latent attention that make no sense are refused") {
  const LlamaShape shape{.layers = 1,
                         .hidden = 64,
                         .heads = 4,
                         .ffn = 128,
                         .vocabulary = 100,
                         .positions = 32,
                         .head_dim = 24,
                         .latent = {.rank = 16, .query_rank = 0, .rotary_dim = 8, .value_dim = 16}};
  const auto why = [&](auto change) {
    ModelSpec model = llama("latent", shape);
    change(model.blocks[0]);
    return why_not(model);
  };
  CHECK(why([](LayerSpec&) {}) == "");
  CHECK(why([](LayerSpec& l) { l.head_dim = 25; }) == "");  // positions turn 8 of them
  const auto refused = [&](const std::string& part, auto change) {
    const std::string text = why(change);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  refused("as many heads of keys", [](LayerSpec& l) { l.kv_heads = 2; });
  refused("no biases", [](LayerSpec& l) { l.qkv_bias = true; });
  refused("rotary positions", [](LayerSpec& l) { l.position = PositionKind::learned; });
  refused("an even part", [](LayerSpec& l) { l.latent.rotary_dim = 7; });
  refused("an even part", [](LayerSpec& l) { l.latent.rotary_dim = 24; });
  refused("values are not wider", [](LayerSpec& l) { l.latent.value_dim = 25; });
  refused("ranks of latent attention", [](LayerSpec& l) { l.latent.query_rank = -1; });
  refused("epsilon", [](LayerSpec& l) { l.latent.norm_epsilon = 0; });
  refused("belong to a layer that has it", [](LayerSpec& l) { l.latent.rank = 0; });
  refused("RMS norms where the layer has them", [](LayerSpec& l) {
    l.latent = {};
    l.norm = NormKind::layer_norm;
    l.query_key_norm = QueryKeyNorm::heads;
  });
}

TEST_CASE("a mixture of experts has them in the blocks that its shape says") {
  const std::int64_t dense[] = {3};
  const MoeShape shape{.dense = {.layers = 8, .hidden = 64, .heads = 4, .ffn = 256, .vocabulary = 100, .positions = 32},
                       .experts = 4,
                       .active_experts = 2,
                       .expert_ffn = 32,
                       .router = {.kind = RouterKind::sigmoid, .balance_loss = 0.5},
                       .shared_ffn = 48,
                       .first_dense = 1,
                       .sparse_step = 2,
                       .dense_blocks = dense};
  CHECK(shape.blocks_with_experts() == 3);
  const ModelSpec model = moe("moe", shape);
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    INFO("block ", i);
    const LayerSpec& block = model.blocks[i];
    const bool has = i == 1 || i == 5 || i == 7;
    CHECK(block.experts == (has ? 4 : 0));
    CHECK(block.ffn == (has ? 32 : 256));
    CHECK(block.shared_ffn == (has ? 48 : 0));
    CHECK(block.is_plain_block() == !has);
    CHECK((block.router == shape.router) == has);
  }
  CHECK(checked(model).has_value());
}

}  // namespace
}  // namespace galvatron
