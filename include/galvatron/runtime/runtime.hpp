// Executes the programs of layers and keeps their parameters.
#pragma once

#include <galvatron/runtime/attention.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/logits.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/runtime/parameter_store.hpp>
#include <galvatron/runtime/ring.hpp>
#include <galvatron/runtime/store_view.hpp>
#include <galvatron/runtime/streamed_store.hpp>
#include <galvatron/runtime/ulysses.hpp>
#include <galvatron/runtime/window_attention.hpp>
