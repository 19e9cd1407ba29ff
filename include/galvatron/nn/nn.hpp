// The layers of Transformers, parallel in every supported way.
#pragma once

#include <galvatron/nn/attention.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/implemented.hpp>
#include <galvatron/nn/layer.hpp>
#include <galvatron/nn/logits.hpp>
#include <galvatron/nn/make_layer.hpp>
#include <galvatron/nn/parameter_store.hpp>
#include <galvatron/nn/ring.hpp>
#include <galvatron/nn/store_view.hpp>
#include <galvatron/nn/streamed_store.hpp>
#include <galvatron/nn/ulysses.hpp>
#include <galvatron/nn/window_attention.hpp>
