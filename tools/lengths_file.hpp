// Files of documents' lengths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace galvatron::tools {

/// Tokens of documents, one number a line, of a text or a gzip file. Throws Failure (usage).
std::vector<std::int64_t> read_lengths(const std::string& path);

}  // namespace galvatron::tools
