#include "lengths_file.hpp"

#include <cerrno>
#include <cstddef>
#include <memory>

#include <zlib.h>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/flexsp/lengths.hpp>

namespace galvatron::tools {

std::vector<std::int64_t> read_lengths(const std::string& path) {
  constexpr std::size_t most = std::size_t{1} << 30;  // bytes of text
  constexpr unsigned block = 1 << 20;
  value_or_throw(galvatron::detail::ReadableFile::open(path));  // says why a file cannot be opened
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) refuse(path, ": cannot be opened; check its name and permissions");
  std::string text;
  for (;;) {
    const std::size_t begin = text.size();
    text.resize(begin + block);
    const int got = gzread(file.get(), text.data() + begin, block);
    int code = Z_OK;
    const std::string why = gzerror(file.get(), &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
      refuse(path, ": the gzip file is damaged or cut short (", galvatron::detail::one_line(why, 80),
             "); get it again");
    text.resize(begin + static_cast<std::size_t>(got));
    if (got == 0) break;
    if (text.size() > most) refuse(path, ": more than ", "1 GiB", " of text; give a part of it");
  }
  return value_or_throw(flexsp::lengths_from_text(text, path));
}

}  // namespace galvatron::tools
