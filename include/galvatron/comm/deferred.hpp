// Collectives that are started now and carried out when they are finished.
//
// For groups whose ranks have nobody else to carry messages: rank threads compute on the cores that would. A group that
// has somebody (a GPU's copy engines, a network card) models comm::Group with operations that really begin at the
// start.
#pragma once

#include <cstdint>
#include <type_traits>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm {

/// The start_*() and finish() of G, by its blocking collectives.
template <class G>
class Deferred {
 public:
  /// A collective that was started; nothing by default.
  class Pending {
    friend class Deferred;
    void (*run_)(G&, const Pending&) = nullptr;
    const void* from_ = nullptr;
    std::int64_t from_count_ = 0;
    void* to_ = nullptr;
    std::int64_t to_count_ = 0;
    ReduceOp op_ = ReduceOp::sum;
  };

  template <class T>
  Pending start_all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    return pending<T>({}, data, op, [](G& group, const Pending& p) { group.all_reduce(to<T>(p), p.op_); });
  }
  template <class T>
  Pending start_all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    return pending<T>(shard, all, {}, [](G& group, const Pending& p) { group.all_gather(from<T>(p), to<T>(p)); });
  }
  template <class T>
  Pending start_reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    return pending<T>(all, shard, {}, [](G& group, const Pending& p) {
      const View<const T> whole = from<T>(p);
      group.reduce_scatter(View<T>(const_cast<T*>(whole.data), whole.count), to<T>(p));
    });
  }
  void finish(Pending& pending) {
    if (pending.run_ == nullptr) return;
    pending.run_(static_cast<G&>(*this), pending);
    pending = {};
  }

 private:
  template <class T>
  static Pending pending(View<const T> from, View<T> to, ReduceOp op, void (*run)(G&, const Pending&)) {
    Pending out;
    out.run_ = run;
    out.from_ = from.data;
    out.from_count_ = from.count;
    out.to_ = to.data;
    out.to_count_ = to.count;
    out.op_ = op;
    return out;
  }
  template <class T>
  static View<const T> from(const Pending& p) {
    return {static_cast<const T*>(p.from_), p.from_count_};
  }
  template <class T>
  static View<T> to(const Pending& p) {
    return {static_cast<T*>(p.to_), p.to_count_};
  }
};

}  // namespace galvatron::comm
