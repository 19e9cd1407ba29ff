// Any bytes given as an index of Megatron-LM end in documents inside the file of tokens, in order, or in a one-line
// error. The first byte of the input is the size of that file.
#include <cstddef>
#include <cstdint>
#include <span>

#include <galvatron/data/document_source.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  if (size == 0) return 0;
  const std::int64_t tokens = data[0];
  const auto index = train::MegatronIndex::parse(std::as_bytes(std::span(data + 1, size - 1)), "input.idx");
  if (!index) {
    require_one_line(index.error());
    return 0;
  }
  train::DocumentFile file;
  file.kind = train::DocumentFileKind::tokens;
  file.name = "input.bin";
  const train::DocumentOptions options{.vocabulary = 256, .skip_empty = true};
  std::int64_t documents = 0, end = 0;
  const auto done =
      index->for_each_document(tokens, "input.idx", [&](std::int64_t d, std::int64_t first, std::int64_t n) {
        require(d == documents++);
        require(first >= end && n >= 0 && first + n <= tokens);
        end = first + n;
        return file.add({first, n}, options);
      });
  if (!done) {
    require_one_line(done.error());
    return 0;
  }
  require(documents == index->documents() && file.count + file.skipped == documents);
  for (std::int64_t i = 0; i < file.count; ++i) require(file.table[i].length >= 2);
  return 0;
}
