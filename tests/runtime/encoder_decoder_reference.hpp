// The blocks of an encoder-decoder model in double precision and in the plainest loops.
//
// Shapes as in reference.hpp. Tensors at the borders of a block have the encoder's rows and then the decoder's.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "reference.hpp"

namespace galvatron::test::reference {

/// T5's bucket of the distance key - query among `buckets`, by the words of the paper: half of the buckets of a
/// direction for single distances, the others logarithmically up to 128.
inline std::int64_t bucket_of(std::int64_t distance, std::int64_t buckets, bool causal) {
  std::int64_t of_direction = buckets;
  std::int64_t bucket = 0;
  if (!causal) {
    of_direction /= 2;
    if (distance > 0) bucket = of_direction;
  } else if (distance > 0) {
    distance = 0;
  }
  const double away = std::abs(static_cast<double>(distance));
  const double single = static_cast<double>(of_direction / 2);
  if (away < single) return bucket + static_cast<std::int64_t>(away);
  const double share = std::log(away / single) / std::log(128.0 / single);
  const double behind = single + std::floor(share * (static_cast<double>(of_direction) - single));
  return bucket + std::min(static_cast<std::int64_t>(behind), of_direction - 1);
}

/// Softmax attention of q (queries * b, A * d) to k and v (keys * b, A * d).
/// @param bias  of (head, query, key)
inline Tensor attend(const LayerSpec& layer, std::int64_t samples, const Tensor& q, const Tensor& k, const Tensor& v,
                     bool causal, const std::function<double(std::int64_t, std::int64_t, std::int64_t)>& bias) {
  const std::int64_t d = layer.head_dim;
  const std::int64_t divisor = layer.score_width == 0 ? d : layer.score_width;
  const std::int64_t width = layer.heads * d;
  const auto queries = static_cast<std::int64_t>(q.size()) / width / samples;
  const auto keys = static_cast<std::int64_t>(k.size()) / width / samples;
  Tensor out(q.size(), 0.0);
  Tensor weights(at(keys));
  for (std::int64_t i = 0; i < samples; ++i)
    for (std::int64_t head = 0; head < layer.heads; ++head)
      for (std::int64_t s = 0; s < queries; ++s) {
        const auto place = [&](std::int64_t token, std::int64_t c) {
          return at((token * samples + i) * width + head * d + c);
        };
        const std::int64_t seen = causal ? s + 1 : keys;
        double sum = 0;
        for (std::int64_t key = 0; key < seen; ++key) {
          double score = 0;
          for (std::int64_t c = 0; c < d; ++c) score += q[place(s, c)] * k[place(key, c)];
          weights[at(key)] = std::exp(score / std::sqrt(static_cast<double>(divisor)) + bias(head, s, key));
          sum += weights[at(key)];
        }
        for (std::int64_t key = 0; key < seen; ++key)
          for (std::int64_t c = 0; c < d; ++c) out[place(s, c)] += weights[at(key)] / sum * v[place(key, c)];
      }
  return out;
}

/// Columns [first, first + count) of x (rows, width).
inline Tensor columns(const Tensor& x, std::int64_t width, std::int64_t first, std::int64_t count) {
  Tensor out;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(x.size()) / width; ++row)
    for (std::int64_t c = 0; c < count; ++c) out.push_back(x[at(row * width + first + c)]);
  return out;
}

inline Tensor sum_of(Tensor a, const Tensor& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// A block of T5: both sides' rows (S + T) * b of H in, and out. Those that are not the layer's own stay as they are.
/// @param tokens  of the model: S and b
inline Tensor encoder_decoder_block(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& both) {
  using Name = ParameterName;
  const std::int64_t h = layer.hidden;
  const std::int64_t q_width = layer.heads * layer.head_dim;
  const auto border = both.begin() + static_cast<std::ptrdiff_t>(tokens.rows() * h);
  const Tensor source(both.begin(), border);
  const Tensor target(border, both.end());
  const bool decodes = layer.memory.any();
  Tensor x = decodes ? target : source;
  const auto normed = [&](Name gamma, const Tensor& in) { return norm(layer, in, p.at(gamma), nullptr); };

  const Tensor qkv = linear(normed(Name::norm1_gamma, x), p.at(Name::qkv_weight), nullptr, h);
  const auto part = [&](std::int64_t i) { return columns(qkv, 3 * q_width, i * q_width, q_width); };
  const Tensor& table = p.at(Name::relative_positions);
  const Tensor self = attend(layer, tokens.samples, part(0), part(1), part(2), layer.causal,
                             [&](std::int64_t head, std::int64_t s, std::int64_t key) {
                               return table[at(bucket_of(key - s, layer.bias_rows, layer.causal) * layer.heads + head)];
                             });
  x = sum_of(x, linear(self, p.at(Name::attention_out_weight), nullptr, q_width));
  if (decodes) {
    const Tensor query = linear(normed(Name::norm3_gamma, x), p.at(Name::cross_query_weight), nullptr, h);
    const Tensor kv = linear(source, p.at(Name::cross_memory_weight), nullptr, h);
    const Tensor cross = attend(layer, tokens.samples, query, columns(kv, 2 * q_width, 0, q_width),
                                columns(kv, 2 * q_width, q_width, q_width), false,
                                [](std::int64_t, std::int64_t, std::int64_t) { return 0.0; });
    x = sum_of(x, linear(cross, p.at(Name::cross_out_weight), nullptr, q_width));
  }
  const Tokens own{static_cast<std::int64_t>(x.size()) / h / tokens.samples, tokens.samples};
  x = sum_of(x, mlp(layer, own, p, normed(Name::norm2_gamma, x)));
  if (layer.closing_norm) x = normed(Name::closing_gamma, x);

  Tensor out = decodes ? source : x;
  const Tensor& behind = decodes ? x : target;
  out.insert(out.end(), behind.begin(), behind.end());
  return out;
}

}  // namespace galvatron::test::reference
