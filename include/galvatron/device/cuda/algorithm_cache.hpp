// Which algorithm of cuBLASLt was fastest for a product, kept on disk for runs to come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron::device::cuda {

/// A file for each device and version of cuBLASLt, whose descriptions of algorithms mean something there only.
class AlgorithmCache {
 public:
  using Algorithm = std::array<std::uint64_t, 8>;       ///< cublasLtMatmulAlgo_t, which its documentation lets us store
  using Algorithms = std::map<std::string, Algorithm>;  ///< by product
  static constexpr int version = 1;

  /// Where programs keep such files: GALVATRON_CACHE, or galvatron in XDG_CACHE_HOME or in ~/.cache; or empty.
  static std::filesystem::path folder() {
    for (const auto& [variable, below] :
         {std::pair("GALVATRON_CACHE", ""), {"XDG_CACHE_HOME", "/galvatron"}, {"HOME", "/.cache/galvatron"}})
      if (const char* const value = std::getenv(variable); value != nullptr && *value != '\0')
        return std::string(value) + below;
    return {};
  }

  /// Reads the file of this device in the folder; one that cannot be read counts as none. Without a folder nothing is
  /// kept.
  AlgorithmCache(const std::filesystem::path& folder, std::string device, std::uint64_t library)
      : device_(std::move(device)), library_(library) {
    if (folder.empty()) return;
    std::string name = device_ + "-cublaslt-" + std::to_string(library);
    for (char& c : name)
      if ((c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '.') c = '-';
    path_ = folder / (name + ".json");
    algorithms_ = read();
  }

  /// The algorithms in a file's text; none when save() would not write it for this device and library.
  static Algorithms parse(std::string_view text, const std::string& device, std::uint64_t library) {
    const auto value = parse_json(text, "the cache of algorithms");
    if (!value) return {};
    try {
      Algorithms out;
      for (const nlohmann::json& item : value->at("algorithms"))
        out[item.at("product").get<std::string>()] = item.at("words").get<Algorithm>();
      return file_of(out, device, library).dump() == value->dump() ? out : Algorithms{};
    } catch (const nlohmann::json::exception&) {
      return {};
    }
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::size_t size() const { return algorithms_.size(); }
  /// Null when the product was never searched.
  [[nodiscard]] const Algorithm* find(const std::string& product) const {
    const auto found = algorithms_.find(product);
    return found == algorithms_.end() ? nullptr : &found->second;
  }
  void keep(const std::string& product, const Algorithm& algorithm) {
    algorithms_[product] = algorithm;
    is_changed_ = true;
  }
  /// Writes what is new, beside what other programs have written meanwhile; the file is replaced as a whole. Errors
  /// (usage): an unwritable place.
  Result<void> save() {
    if (!is_changed_ || path_.empty()) return {};
    std::error_code failed;
    std::filesystem::create_directories(path_.parent_path(), failed);
    auto all = read();
    for (const auto& [product, algorithm] : algorithms_) all[product] = algorithm;
    algorithms_ = std::move(all);
    const nlohmann::json file = file_of(algorithms_, device_, library_);
    if (auto done = write_file_atomically(path_, json_text(file)); !done) return done;
    is_changed_ = false;
    return {};
  }

 private:
  static nlohmann::json file_of(const Algorithms& algorithms, const std::string& device, std::uint64_t library) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& [product, algorithm] : algorithms) list.push_back({{"product", product}, {"words", algorithm}});
    return {{"version", version}, {"device", device}, {"library", library}, {"algorithms", std::move(list)}};
  }
  [[nodiscard]] Algorithms read() const {
    const auto text = read_text_file(path_);
    return text ? parse(*text, device_, library_) : Algorithms{};
  }

  std::string device_;
  std::uint64_t library_;
  std::filesystem::path path_;
  Algorithms algorithms_;
  bool is_changed_ = false;
};

}  // namespace galvatron::device::cuda
