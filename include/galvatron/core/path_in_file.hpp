// Paths that a file has of other files, of which a plan names its model's config.json.
//
// In a file a relative path begins at the folder of that file, so that it means the same wherever the program runs, and
// a folder with both can be moved. In a program it begins at the current folder, as paths of the command line do.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace galvatron {

namespace detail {

/// The folder of a file, without links; empty when it has none that could be named.
inline std::filesystem::path folder_of(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::weakly_canonical(std::filesystem::absolute(file, error), error);
  if (error) return {};
  return folder.parent_path();
}

}  // namespace detail

/// What a file that is written at `file` says of `path`, which begins at the current folder. An absolute path stays as
/// it is, and so does one of which there is nothing. Into a pipe or a device, whose folder means nothing, a path is
/// written as absolute.
inline std::string path_for_file(const std::string& path, const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path given(path);
  if (path.empty() || given.is_absolute() || !std::filesystem::exists(given, error)) return path;
  const std::filesystem::path whole = std::filesystem::canonical(given, error);
  if (error) return path;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) return whole.string();
  const std::filesystem::path folder = detail::folder_of(file);
  const std::filesystem::path relative = folder.empty() ? whole : whole.lexically_relative(folder);
  return (relative.empty() ? whole : relative).string();
}

/// The path of what `file` calls `path`: from the current folder, as `file` is, or absolute if `file` is. Where nothing
/// is there the path is taken from the current folder, from which files of before name it.
inline std::string path_from_file(const std::string& path, const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path given(path);
  if (path.empty() || given.is_absolute()) return path;
  const std::filesystem::path folder = detail::folder_of(file);
  if (folder.empty() || !std::filesystem::exists(folder / given, error)) return path;
  const std::filesystem::path whole = std::filesystem::canonical(folder / given, error);
  if (error) return path;
  if (file.is_absolute()) return whole.string();
  const std::filesystem::path relative = whole.lexically_relative(std::filesystem::current_path(error));
  return (relative.empty() ? whole : relative).string();
}

}  // namespace galvatron
