// Training data from texts, token files and image files.
#pragma once

#include <galvatron/train/data/batches.hpp>
#include <galvatron/train/data/image_file.hpp>
#include <galvatron/train/data/image_source.hpp>
#include <galvatron/train/data/masked_batches.hpp>
#include <galvatron/train/data/open.hpp>
#include <galvatron/train/data/shuffle.hpp>
#include <galvatron/train/data/span_batches.hpp>
#include <galvatron/train/data/token_file.hpp>
#include <galvatron/train/data/token_source.hpp>
