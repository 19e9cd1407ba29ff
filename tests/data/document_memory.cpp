// A million documents are found with a few megabytes of memory, and with allocations that do not grow with them.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <string>

#include <doctest/doctest.h>

#include <galvatron/data/document_source.hpp>

#include "../sanitized.hpp"
#include "data_writers.hpp"

namespace {

// What the program has allocated; `largest` and `calls` since they were last set.
struct AllocationCount {
  std::atomic<std::int64_t> now{0}, largest{0}, calls{0};

  /// Null where there is no memory.
  void* take(std::size_t bytes) noexcept {
    void* pointer = std::malloc(bytes == 0 ? 1 : bytes);
    if (pointer == nullptr) return nullptr;
    const std::int64_t all = now += static_cast<std::int64_t>(malloc_usable_size(pointer));
    largest = std::max(largest.load(), all);
    ++calls;
    return pointer;
  }
  void give(void* pointer) {
    if (pointer != nullptr) now -= static_cast<std::int64_t>(malloc_usable_size(pointer));
    std::free(pointer);
  }
};
constinit AllocationCount allocated;

}  // namespace

// Every allocation of this program counts.
void* operator new(std::size_t bytes) {
  void* pointer = allocated.take(bytes);
  return pointer == nullptr ? throw std::bad_alloc() : pointer;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocated.take(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocated.take(bytes); }
void operator delete(void* pointer) noexcept { allocated.give(pointer); }
void operator delete[](void* pointer) noexcept { allocated.give(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { allocated.give(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { allocated.give(pointer); }

namespace {

using namespace galvatron;

constexpr std::int64_t many = test::sanitized ? 100'000 : 1'000'000;
constexpr std::int64_t mebibyte = std::int64_t{1} << 20;

struct IndexCost {
  std::int64_t kept = 0, largest = 0, calls = 0;
  train::DocumentFile file;
};

// Of finding documents in bytes that are in memory already.
template <class Find>
IndexCost cost_of_index(const std::string& bytes, int width, train::DocumentFileKind kind, const Find& find) {
  IndexCost out;
  out.file.kind = kind;
  out.file.name = "file";
  const auto tokens = std::as_bytes(std::span(bytes));
  out.file.tokens = {tokens.data(), static_cast<std::int64_t>(bytes.size()) / width, width};
  const std::int64_t before = allocated.now;
  allocated.largest = before;
  allocated.calls = 0;
  const auto found = find(out.file);
  out.file.table.finish();
  REQUIRE(found.has_value());
  out.calls = allocated.calls;
  out.largest = allocated.largest - before;
  out.kept = allocated.now - before;
  return out;
}

// Lengths of 30 to 230 bytes.
std::int64_t length_of(std::int64_t document) { return 30 + document * 7919 % 201; }

void check_lengths(const train::DocumentFile& file, std::int64_t more) {
  REQUIRE(file.count == many);
  std::int64_t document = 0;
  bool same = true;
  file.table.for_each(0, file.count, [&](const train::DocumentTable::Entry& entry) {
    same = same && entry.length == length_of(document++) + more;
  });
  CHECK(same);
}

}  // namespace

TEST_CASE("a million documents of a text take a few megabytes") {
  std::string text;
  for (std::int64_t d = 0; d < many; ++d) text.append(static_cast<std::size_t>(length_of(d)), 'a') += "<|end|>";
  const train::DocumentOptions options{.vocabulary = 256, .seed = 1, .separator = "<|end|>"};
  const auto cost = cost_of_index(text, 1, train::DocumentFileKind::separated_text, [&](train::DocumentFile& file) {
    return train::find_documents_of_text(file, options);
  });
  check_lengths(cost.file, 0);
  MESSAGE(cost.kept, " bytes kept, at most ", cost.largest, ", ", cost.calls, " allocations");
  CHECK(cost.kept <= 4 * mebibyte);
  CHECK(cost.largest <= 16 * mebibyte);
  CHECK(cost.calls <= 200);  // of vectors that grow
}

TEST_CASE("a million documents of tokens take a few megabytes") {
  std::string tokens;
  for (std::int64_t d = 0; d < many; ++d) {
    tokens.append(static_cast<std::size_t>(2 * length_of(d)), 'a');
    test::append(tokens, std::uint16_t{999});
  }
  const train::DocumentOptions options{.vocabulary = 65536, .seed = 1, .separator = {}, .end_token = 999};
  const auto cost = cost_of_index(tokens, 2, train::DocumentFileKind::tokens, [&](train::DocumentFile& file) {
    return train::find_documents_by_end(file, options);
  });
  check_lengths(cost.file, 1);
  CHECK(cost.kept <= 4 * mebibyte);
  CHECK(cost.largest <= 16 * mebibyte);
  CHECK(cost.calls <= 200);
}

TEST_CASE("a million JSON lines take a few megabytes") {
  std::string lines;
  for (std::int64_t d = 0; d < many; ++d)
    (lines += R"({"id": 17, "text": ")").append(static_cast<std::size_t>(length_of(d)), 'a') += "\"}\n";
  const train::DocumentOptions options{.vocabulary = 256, .seed = 1, .separator = {}};
  const auto cost = cost_of_index(lines, 1, train::DocumentFileKind::json_lines, [&](train::DocumentFile& file) {
    return train::find_documents_of_json_lines(file, options);
  });
  check_lengths(cost.file, 0);
  MESSAGE(cost.kept, " bytes kept, at most ", cost.largest, ", ", cost.calls, " allocations");
  CHECK(cost.kept <= 5 * mebibyte);
  CHECK(cost.largest <= 20 * mebibyte);
  // The parser has memory of its own for each line, which grows with the longest of its strings alone.
  CHECK(cost.calls <= 32 * many);
}
