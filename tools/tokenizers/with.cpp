// Tokenizers in a build that has PCRE2, sentencepiece and utf8proc.
#include <galvatron/data/open_tokenizer.hpp>

#include "../texts.hpp"

namespace galvatron::tools {

Result<std::shared_ptr<const train::Tokenizer>> opened_tokenizer(const std::filesystem::path& path) {
  return train::open_tokenizer(path);
}

}  // namespace galvatron::tools
