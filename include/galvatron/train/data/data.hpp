// Training data from texts and token files.
#pragma once

#include <galvatron/train/data/shuffle.hpp>
#include <galvatron/train/data/token_file.hpp>
#include <galvatron/train/data/token_source.hpp>
