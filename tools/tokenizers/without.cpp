// Tokenizers in a build without their libraries.
#include "../texts.hpp"

namespace galvatron::tools {

Result<std::shared_ptr<const train::Tokenizer>> opened_tokenizer(const std::filesystem::path& path) {
  return usage_error(path.string() +
                     ": this galvatron was built without tokenizers; install libpcre2-dev, libsentencepiece-dev and "
                     "libutf8proc-dev and build it again, or tokenize elsewhere into a .bin file (docs/data.md)");
}

}  // namespace galvatron::tools
