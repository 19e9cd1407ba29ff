// Work that a program asks for again and again, recorded once and then launched as a whole.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/document_groups.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::cuda {

/// Stands before machine M (see gpu.hpp) and models it too. What is asked for inside repeat(number, body) is done the
/// first time, recorded and done the second, and from then on only compared with the record, which is run when body()
/// has returned: body() runs every time, since it writes the data that go to the device, but launches nothing.
///
/// M::Recording is what begin_recording() and end_recording() enclose; run(recording) does it, recording.wait() returns
/// when that is done. M::HostMemory(Bytes) is memory of the program from which recorded copies may read.
template <class M>
class GraphReplay {
 public:
  explicit GraphReplay(M& machine) : m_(machine) {}
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;

  [[nodiscard]] M& machine() { return m_; }
  /// Why work could not be recorded and is asked for one by one; empty if it was never so.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  /// Operations of the recordings that there are.
  [[nodiscard]] std::int64_t recorded() const {
    std::int64_t out = 0;
    for (const auto& [number, entry] : entries_) out += entry.recording ? entry.asked.operations : 0;
    return out;
  }

  void repeat(int number, auto&& body) {
    Entry& entry = entries_[number];
    if (entry.refused) return body();
    if (entry.recording) {
      entry.recording->wait();  // it reads the data that body() is going to replace
      walk(entry, Mode::compares, body);
      if (asked_ == entry.asked) return m_.run(*entry.recording);
      entry.recording.reset();
      entry.host = std::make_unique<typename M::HostMemory>(Bytes{asked_.uploaded});
    } else if (!entry.host) {  // for the first time
      asked_ = {};
      body();
      entry.host = std::make_unique<typename M::HostMemory>(Bytes{asked_.uploaded});
      return;
    }
    record(entry, body);
  }

  template <class Kernel>
  void launch(const Geometry& geometry, const Kernel& kernel) {
    ask(&kind<Kernel>, geometry.blocks, geometry.threads);
    attempt([&] { m_.launch(geometry, kernel); });
  }
  void zero(void* to, std::int64_t bytes) {
    ask(to, bytes);
    attempt([&] { m_.zero(to, bytes); });
  }
  void copy(const void* from, void* to, std::int64_t bytes) {
    ask(from, to, bytes);
    attempt([&] { m_.copy(from, to, bytes); });
  }
  void multiply(const Product& product, const void* a, const void* b, const void* bias, void* c,
                const float* unscale = nullptr) {
    ask(product, a, b, bias, c, unscale);
    attempt([&] { m_.multiply(product, a, b, bias, c, unscale); });
  }
  bool try_multiply(const Product& product, Epilogue epilogue, const void* a, const void* b, const void* bias, void* u,
                    void* c) {
    return answer([&] { return m_.try_multiply(product, epilogue, a, b, bias, u, c); }, product, epilogue, a, b, bias,
                  u, c);
  }
  bool attention(const AttentionShape& shape, Precision precision, auto... arguments) {
    return answer([&] { return m_.attention(shape, precision, arguments...); }, arguments...);
  }
  /// A recording is of groups of that many documents; where they lie is in the tables.
  bool attention(const AttentionShape& shape, const DocumentGroups& documents, const std::byte* tables,
                 auto... arguments) {
    for (const DocumentGroup& group : documents.all()) ask(group.tokens, group.count());
    return answer([&] { return m_.attention(shape, documents, tables, arguments...); }, shape.queries, shape.lse_row(),
                  tables, arguments...);
  }

  void wait() {
    refuse_inside();
    m_.wait();
  }
  /// Other threads may call it; while work is recorded they wait.
  void fetch(const void* from, void* to, std::int64_t bytes) {
    refuse_inside();
    const std::scoped_lock lock(recording_);
    m_.fetch(from, to, bytes);
  }
  void upload(void* to, std::int64_t bytes, const auto& writer) {
    ask(to, bytes);
    const std::int64_t first = asked_.uploaded;
    asked_.uploaded += aligned_bytes(bytes);
    if (mode_ == Mode::does) return m_.upload(to, bytes, writer);
    if (asked_.uploaded > entry_->host->size().count) {  // more than the first time: this is no repetition
      fail("a repeated step brings more data than the first did");
      std::vector<std::max_align_t> unused(static_cast<std::size_t>(bytes) / sizeof(std::max_align_t) + 1);
      return writer(reinterpret_cast<std::byte*>(unused.data()));
    }
    std::byte* from = entry_->host->data() + first;
    writer(from);
    attempt([&] { m_.copy(from, to, bytes); });
  }
  [[nodiscard]] View<std::byte> workspace() { return m_.workspace(); }

 private:
  enum class Mode : std::uint8_t { does, records, compares };

  /// What was asked for: operations with their addresses, as a hash.
  struct Asked {
    std::int64_t operations = 0;
    std::int64_t uploaded = 0;  ///< bytes
    std::uint64_t hash = 0;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  struct Entry {
    bool refused = false;
    std::unique_ptr<typename M::HostMemory> host;    ///< uploads of a repetition, one behind the other
    std::optional<typename M::Recording> recording;  ///< ends before its data do
    std::vector<bool> answers;                       ///< whether the machine has an operation
    Asked asked;
  };

  // body() with other means; what it asks for is in asked_ then.
  void walk(Entry& entry, Mode mode, auto&& body) {
    struct Back {
      GraphReplay& r;
      ~Back() {
        r.mode_ = Mode::does;
        r.inside_ = std::thread::id();
      }
    };
    asked_ = {};
    answered_ = 0;
    failure_.clear();
    entry_ = &entry;
    inside_ = std::this_thread::get_id();
    mode_ = mode;
    const Back back{*this};
    body();
  }

  void record(Entry& entry, auto&& body) {
    entry.answers.clear();
    {
      const std::scoped_lock lock(recording_);
      m_.begin_recording();
      try {
        walk(entry, Mode::records, [&] {
          body();
          attempt([&] { entry.recording.emplace(m_.end_recording()); });
        });
      } catch (...) {
        m_.drop_recording();
        throw;
      }
      if (!entry.recording) m_.drop_recording();
    }
    if (failure_.empty()) {
      entry.asked = asked_;
      return m_.run(*entry.recording);
    }
    entry.refused = true;
    refusal_ = failure_;
    body();
  }

  // Operations that cannot be recorded end the recording, not the step, which is then done without.
  void attempt(const auto& operation) {
    if (mode_ == Mode::does) return operation();
    if (mode_ == Mode::compares || !failure_.empty()) return;
    try {
      operation();
    } catch (const DeviceFailure& why) {
      fail(why.what());
    }
  }
  void fail(const std::string& why) {
    if (failure_.empty()) failure_ = why;
  }

  // Whether the machine has such an operation of its own.
  bool answer(const auto& operation, auto... arguments) {
    ask(arguments...);
    if (mode_ == Mode::compares) return answered_ < entry_->answers.size() && entry_->answers[answered_++];
    bool done = false;
    attempt([&] { done = operation(); });
    if (mode_ == Mode::records) entry_->answers.push_back(done);
    return done;
  }

  void ask(auto... values) {
    ++asked_.operations;
    (mix(values), ...);
  }
  template <class V>
  void mix(const V& value) {
    std::uint64_t bits = 0;
    if constexpr (std::is_same_v<V, Product>) {
      const auto& [product, operands, result, accumulate, bias, gradient, m, n, k, scale, strides] = value;
      return mix(product), mix(operands), mix(result), mix(accumulate), mix(bias), mix(gradient), mix(m), mix(n),
             mix(k), mix(strides.a), mix(strides.b), mix(strides.c), mix(std::bit_cast<std::uint32_t>(scale));
    } else if constexpr (std::is_pointer_v<V>) {
      bits = reinterpret_cast<std::uintptr_t>(value);
    } else {
      bits = static_cast<std::uint64_t>(value);
    }
    asked_.hash = (asked_.hash ^ bits) * 0x9e37'79b9'7f4a'7c15U;
    asked_.hash ^= asked_.hash >> 29;
  }
  void refuse_inside() const {
    if (inside_ == std::this_thread::get_id())
      throw std::logic_error("galvatron: work that is repeated must not wait for the GPU");
  }

  template <class Kernel>
  static constexpr char kind = 0;  ///< its address stands for the kernel

  M& m_;
  std::map<int, Entry> entries_;
  std::string refusal_;
  std::mutex recording_;
  std::atomic<std::thread::id> inside_{};  ///< the thread that walks
  Mode mode_ = Mode::does;
  Entry* entry_ = nullptr;
  Asked asked_;
  std::size_t answered_ = 0;
  std::string failure_;
};

}  // namespace galvatron::device::cuda
