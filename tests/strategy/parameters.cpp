#include <galvatron/strategy/parameters.hpp>

#include <doctest/doctest.h>

#include <string>

#include <galvatron/model/layers.hpp>
#include <galvatron/model/zoo.hpp>

using namespace galvatron;

namespace {

std::int64_t elements(const LayerSpec& layer, ParameterPart part, int tensor) {
  std::int64_t sum = 0;
  for (const ParameterTensor& t : parameter_layout(layer, part, tensor, 1))
    sum += t.count() * (t.cut == ParameterCut::whole ? 1 : tensor);
  return sum;
}

}  // namespace

TEST_CASE("the tensors of a layer are the parameters that are counted, whole and cut") {
  for (const std::string& name : model_names()) {
    const ModelSpec model = value_or_throw(find_model(name));
    const LayerSpec* before = nullptr;
    for (const LayerSpec& block : model.blocks) {
      if (before != nullptr && *before == block) continue;
      before = &block;
      INFO(name << ", layer " << &block - model.blocks.data());
      CHECK(elements(block, ParameterPart::rest, 1) + elements(block, ParameterPart::experts, 1) == parameters(block));
      if (block.heads % 4 == 0 && block.kv_heads % 4 == 0)
        CHECK(elements(block, ParameterPart::rest, 4) + elements(block, ParameterPart::experts, 4) ==
              parameters(block));
    }
    // Tables and biases over the vocabulary are padded.
    const auto padded = [](std::int64_t v) { return RankShares::even(1).vocabulary_rows(v) - v; };
    const LayerSpec& e = model.embedding;
    CHECK(elements(e, ParameterPart::table, 1) + elements(e, ParameterPart::rest, 1) ==
          parameters(e) + (e.patch_width > 0 ? 0 : padded(e.vocabulary) * e.hidden));
    const LayerSpec& h = model.head;
    const std::int64_t table = h.tied ? 0 : elements(h, ParameterPart::table, 1) - padded(h.vocabulary) * h.hidden;
    const std::int64_t biases = h.head == HeadKind::language ? 0 : padded(h.vocabulary);
    CHECK(table + elements(h, ParameterPart::rest, 1) == parameters(h) + biases);
  }
}

TEST_CASE("tensors lie behind one another in the order of their kinds") {
  for (const std::string& name : model_names()) {
    const ModelSpec model = value_or_throw(find_model(name));
    for (const LayerSpec* layer : {&model.embedding, &model.blocks.front(), &model.blocks.back(), &model.head}) {
      const ParameterLayout layout = parameter_layout(*layer, ParameterPart::rest, 1, 4);
      std::int64_t end = 0;
      for (const ParameterTensor& t : layout) {
        CHECK(t.offset == end);
        CHECK(t.decays == (t.offset < layout.decay_end));
        CHECK((t.cut == ParameterCut::whole) == (t.offset >= layout.whole_begin && t.offset < layout.whole_end));
        end = round_up(t.offset + t.count(), parameter_alignment);
      }
      CHECK(layout.elements >= end);
      CHECK(layout.elements % (4 * parameter_alignment) == 0);
    }
  }
}

TEST_CASE("gradients that are written are weights of blocks and lie without gaps at the beginning") {
  for (const std::string& name : model_names()) {
    const ModelSpec model = value_or_throw(find_model(name));
    for (const LayerSpec* layer : {&model.embedding, &model.blocks.front(), &model.blocks.back(), &model.head}) {
      INFO(name);
      const ParameterLayout layout = parameter_layout(*layer, ParameterPart::rest, 1, 4);
      std::int64_t end = 0;
      for (const ParameterTensor& t : layout) {
        if (t.offset >= layout.written_end) break;
        CHECK(t.offset == end);
        CHECK(t.name != ParameterName::relative_positions);
        CHECK(t.columns > 1);
        end += t.count();
      }
      CHECK(end == layout.written_end);
      if (layer->kind != LayerKind::block) CHECK(layout.written_end == 0);
      // Widths are multiples of 32: all four weights.
      else if (layer->experts == 0)
        CHECK(layout.written_end >= layer->hidden * (layer->hidden + layer->ffn_inputs()));
    }
  }
  // Where weights could end between multiples, all are added to zeros.
  const LayerSpec odd{.hidden = 5, .heads = 1, .kv_heads = 1, .head_dim = 5, .ffn = 7, .positions = 8};
  const ParameterLayout layout = parameter_layout(odd, ParameterPart::rest, 1, 1);
  CHECK(layout.written_end == 0);
}

TEST_CASE("the sections of a tensor that is cut by rows are all of its rows") {
  for (const std::string& name : model_names()) {
    const ModelSpec model = value_or_throw(find_model(name));
    for (const LayerSpec* layer : {&model.embedding, &model.blocks.front(), &model.blocks.back(), &model.head})
      for (const ParameterPart part : parameter_parts)
        for (const ParameterTensor& t : parameter_layout(*layer, part, 1, 1)) {
          INFO(name << ", tensor " << static_cast<int>(t.name));
          const std::int64_t copies = layer->experts > 0 && t.columns > 1 ? layer->experts : 1;
          const std::int64_t rows = t.sections[0] + t.sections[1] + t.sections[2];
          if (t.cut == ParameterCut::rows) CHECK((t.rows == rows || t.rows == copies * rows));
        }
  }
}
