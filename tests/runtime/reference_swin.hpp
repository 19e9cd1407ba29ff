// The layers of a Swin Transformer in double precision and in the plainest loops, as the paper tells them: the image is
// rolled, cut into windows, and what rolling brought together is masked. See reference.hpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference.hpp"

namespace galvatron::test::reference {

/// Number of the region of the rolled image in which a coordinate lies: the last window is in two of them.
inline int rolled_region(std::int64_t rolled, std::int64_t side, const LayerSpec& layer) {
  if (layer.shift == 0 || rolled < side - layer.window) return 0;
  return rolled < side - layer.shift ? 1 : 2;
}

/// Attention in windows of the fused projection (rows, qkv) -> (rows, A * head_dim), with the table (distances, A).
inline Tensor window_attention(const LayerSpec& layer, Tokens tokens, const Tensor& qkv, const Tensor& table) {
  const std::int64_t d = layer.head_dim;
  const std::int64_t q = layer.heads * d;
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(tokens.sequence))));
  const std::int64_t w = layer.window;
  Tensor out(at(tokens.rows() * q), 0.0);
  // Of a token of the rolled image, its row of qkv.
  const auto row_of = [&](std::int64_t y, std::int64_t x, std::int64_t sample) {
    return ((y + layer.shift) % side * side + (x + layer.shift) % side) * tokens.samples + sample;
  };
  for (std::int64_t i = 0; i < tokens.samples; ++i)
    for (std::int64_t head = 0; head < layer.heads; ++head)
      for (std::int64_t y = 0; y < side; ++y)
        for (std::int64_t x = 0; x < side; ++x) {
          const std::int64_t query = row_of(y, x, i);
          Tensor weights;
          std::vector<std::int64_t> keys;
          double sum = 0;
          for (std::int64_t v = y / w * w; v < y / w * w + w; ++v)
            for (std::int64_t u = x / w * w; u < x / w * w + w; ++u) {
              if (rolled_region(v, side, layer) != rolled_region(y, side, layer)) continue;
              if (rolled_region(u, side, layer) != rolled_region(x, side, layer)) continue;
              const std::int64_t key = row_of(v, u, i);
              double score = 0;
              for (std::int64_t c = 0; c < d; ++c)
                score += qkv[at(query * 3 * q + head * d + c)] * qkv[at(key * 3 * q + q + head * d + c)];
              const std::int64_t distance = (y - v + w - 1) * (2 * w - 1) + x - u + w - 1;
              score = score / std::sqrt(static_cast<double>(d)) + table[at(distance * layer.heads + head)];
              keys.push_back(key);
              weights.push_back(std::exp(score));
              sum += weights.back();
            }
          for (std::size_t k = 0; k < keys.size(); ++k)
            for (std::int64_t c = 0; c < d; ++c)
              out[at(query * q + head * d + c)] += weights[k] / sum * qkv[at(keys[k] * 3 * q + 2 * q + head * d + c)];
        }
  return out;
}

/// 2 x 2 tokens of x (4 rows, H / 2) become one (rows, H).
inline Tensor merge(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& x) {
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(tokens.sequence))));
  const std::int64_t width = layer.hidden / 2;
  Tensor four;
  for (std::int64_t row = 0; row < tokens.rows(); ++row) {
    const std::int64_t token = row / tokens.samples;
    for (const auto& [down, right] : {std::pair<int, int>{0, 0}, {1, 0}, {0, 1}, {1, 1}}) {
      const std::int64_t from = (token / side * 2 + down) * 2 * side + token % side * 2 + right;
      for (std::int64_t c = 0; c < width; ++c)
        four.push_back(x[at((from * tokens.samples + row % tokens.samples) * width + c)]);
    }
  }
  LayerSpec wide = layer;
  wide.hidden = 2 * layer.hidden;
  return linear(norm(wide, four, p.at(ParameterName::merge_gamma), &p.at(ParameterName::merge_beta)),
                p.at(ParameterName::merge_weight), nullptr, wide.hidden);
}

/// A block with windows: x (rows, H), or what is merged into it, -> (rows, H).
inline Tensor window_block(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& input) {
  using Name = ParameterName;
  const std::int64_t h = layer.hidden;
  const Tensor x = layer.merges ? merge(layer, tokens, p, input) : input;
  const Tensor qkv = linear(norm(layer, x, p.at(Name::norm1_gamma), &p.at(Name::norm1_beta)), p.at(Name::qkv_weight),
                            &p.at(Name::qkv_bias), h);
  Tensor x2 = linear(window_attention(layer, tokens, qkv, p.at(Name::relative_positions)),
                     p.at(Name::attention_out_weight), &p.at(Name::attention_out_bias), h);
  for (std::size_t i = 0; i < x.size(); ++i) x2[i] += x[i];
  Tensor y = mlp(layer, tokens, p, norm(layer, x2, p.at(Name::norm2_gamma), &p.at(Name::norm2_beta)));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x2[i];
  return y;
}

/// An embedding of images without a class token: patches (rows, P) -> (rows, H).
inline Tensor patch_embedding(const LayerSpec& layer, const Parameters& p, const Tensor& patches) {
  using Name = ParameterName;
  return norm(layer, linear(patches, p.at(Name::patch_weight), &p.at(Name::patch_bias), layer.patch_width),
              p.at(Name::closing_gamma), &p.at(Name::closing_beta));
}

/// A classifier of the mean of a sample's tokens: x (rows, H) and targets (b) -> the sum of cross-entropies in nats.
inline double mean_classifier(const LayerSpec& layer, const Parameters& p, const Tensor& x,
                              const std::vector<std::int32_t>& targets) {
  using Name = ParameterName;
  const Tensor n = norm(layer, x, p.at(Name::norm1_gamma), &p.at(Name::norm1_beta));
  Tensor mean(targets.size() * at(layer.hidden), 0.0);
  for (std::size_t i = 0; i < n.size(); ++i)
    mean[i % mean.size()] += n[i] / (static_cast<double>(n.size()) / static_cast<double>(mean.size()));
  const Tensor logits = linear(mean, p.at(Name::table), &p.at(Name::logits_bias), layer.hidden);
  double loss = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    double sum = 0;
    for (std::int64_t v = 0; v < layer.vocabulary; ++v) sum += std::exp(logits[i * at(layer.vocabulary) + at(v)]);
    loss += std::log(sum) - logits[i * at(layer.vocabulary) + at(targets[i])];
  }
  return loss;
}

}  // namespace galvatron::test::reference
