// Training data from texts, token files and image files.
#pragma once

#include <galvatron/data/data_files.hpp>
#include <galvatron/data/image_source.hpp>
#include <galvatron/data/masked_batches.hpp>
#include <galvatron/data/open.hpp>
#include <galvatron/data/span_batches.hpp>
#include <galvatron/data/token_source.hpp>
