// Training data from texts, token files and image files.
#pragma once

#include <galvatron/data/batches.hpp>
#include <galvatron/data/image_file.hpp>
#include <galvatron/data/image_source.hpp>
#include <galvatron/data/masked_batches.hpp>
#include <galvatron/data/open.hpp>
#include <galvatron/data/shuffle.hpp>
#include <galvatron/data/span_batches.hpp>
#include <galvatron/data/token_file.hpp>
#include <galvatron/data/token_source.hpp>
