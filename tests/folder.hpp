// Folders of tests: one that goes away with its content, and the one of the sources.
#pragma once

#include <stdlib.h>  // mkdtemp

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace galvatron::test {

/// The folder tests/ of the sources. Defined in main.cpp: as a path in every unit's command line it would hide from a
/// compiler cache what another checkout compiled.
extern const char* const tests_dir;

struct Folder {
  std::filesystem::path path;

  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "galvatron-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make the folder " + name);
    path = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  /// Writes a file, in folders that are made where they are missing; returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return path / name;
  }
};

}  // namespace galvatron::test
