// The layers of Transformers, parallel in every supported way.
#pragma once

#include <galvatron/nn/attention.hpp>
#include <galvatron/nn/block.hpp>
#include <galvatron/nn/block_layer.hpp>
#include <galvatron/nn/closing_norm.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/embedding.hpp>
#include <galvatron/nn/encoder_decoder_block.hpp>
#include <galvatron/nn/end_layers.hpp>
#include <galvatron/nn/head.hpp>
#include <galvatron/nn/image_ends.hpp>
#include <galvatron/nn/implemented.hpp>
#include <galvatron/nn/layer.hpp>
#include <galvatron/nn/logits.hpp>
#include <galvatron/nn/make_layer.hpp>
#include <galvatron/nn/mean_classifier.hpp>
#include <galvatron/nn/parameter_store.hpp>
#include <galvatron/nn/post_norm_block.hpp>
#include <galvatron/nn/ring.hpp>
#include <galvatron/nn/store_view.hpp>
#include <galvatron/nn/streamed_store.hpp>
#include <galvatron/nn/ulysses.hpp>
#include <galvatron/nn/window_attention.hpp>
#include <galvatron/nn/window_block.hpp>
