// The communicator: groups of ranks and what they say to each other, behind an interface.
//
// Layers and trainers are compiled once for all kinds of ranks: Group and World are abstract, and the element type of a
// collective is a value (docs/decisions/communicator.md). Public calls are templates over the element type; they check
// their arguments and call one virtual function each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/call_clock.hpp>
#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm {

/// A collective that was started; nothing by default. Belongs to the group that gave it.
struct Pending {
  std::optional<Collective> what{};
  void* handle = nullptr;  ///< the group's
};

/// One rank's handle on an ordered set of ranks (a tensor-parallel, a data-parallel or the whole group).
///
/// All members call the same operations, with the same sizes, in the same order; a call that disagrees with the others
/// ends with a Failure on all of them that says who called what. Reductions add in rank order, so results are bit-equal
/// from run to run and the same on every member. A failure on any rank, or the timeout, ends every rank's call with
/// PeerFailure; the contents of the buffers are unspecified then, and nobody touches them any more. Sizes that do not
/// fit together are a Failure (internal) with the numbers.
class Group {
 public:
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  /// This rank's index in the group.
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  /// World ranks of the members, in group order.
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }

  /// data (n) = the members' data, summed in rank order, or their maximum; bfloat16 is summed in float, rounded once.
  template <Reducible T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    const Elements all = elements_of(data);
    run({CallKind::all_reduce, all, all, op});
  }
  /// Where the members' shards of a whole end, in rank order; empty: they are equal. A shard may be empty.
  using Ends = std::span<const std::int64_t>;
  /// all (size * n) = the members' shards (n, or as many as `ends` says) in rank order; shard may be its own place in
  /// `all`.
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all, Ends ends = {}) {
    run(gathering(shard, all, ends));
  }
  /// shard (n, or as many as `ends` says) = the sum, in rank order, of the members' all[rank * n, rank * n + n); shard
  /// may be its own place in `all` (size * n), whose other elements are unspecified afterwards.
  template <Reducible T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard, Ends ends = {}) {
    run(scattering(all, shard, ends));
  }
  /// Block i of `to` (size * n) = block rank() of member i's `from` (size * n); the two do not overlap. Unequal blocks
  /// are those of a matrix of which a member has its rows before, and its columns afterwards: member j's block for
  /// member i has as many elements as j has rows times i has columns, and may be empty.
  /// @param rows, columns  where the members' rows and columns end; both are empty where blocks are equal
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to, Ends rows = {}, Ends columns = {}) {
    run({CallKind::all_to_all, elements_of(from), elements_of(to), ReduceOp::sum, 0, rows, columns});
  }
  /// data (n) = the data of member `root`.
  template <class T>
  void broadcast(View<T> data, int root) {
    const Elements all = elements_of(data);
    run({CallKind::broadcast, all, all, ReduceOp::sum, root});
  }
  /// One step around the ring of the members, while the caller computes: `from` goes to the next member, and `to` comes
  /// from the one before, as large as that sends. Both are left alone until finish_shifts(), which ends all that were
  /// started. Shifts arrive in the order in which they were started.
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    run({CallKind::shift, elements_of(from), elements_of(to)});
  }
  void finish_shifts() {
    const CallClock clock;
    do_finish_shifts();
  }
  /// Returns when all members have called it.
  void barrier() { run({CallKind::barrier}); }

  /// The same, begun now and complete when finished: in between nobody touches the data. All members start the same
  /// ones in the same order, and finish them in the same order among their calls of this group; what is not finished
  /// when the world ends is void. To finish nothing, a Pending{}, does nothing.
  template <Reducible T>
  Pending start_all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    const Elements all = elements_of(data);
    return start({CallKind::all_reduce, all, all, op});
  }
  /// @param ends  which stay as they are until finish()
  template <class T>
  Pending start_all_gather(std::type_identity_t<View<const T>> shard, View<T> all, Ends ends = {}) {
    return start(gathering(shard, all, ends));
  }
  template <Reducible T>
  Pending start_reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard, Ends ends = {}) {
    return start(scattering(all, shard, ends));
  }
  void finish(Pending& pending) {
    const CallClock clock;
    if (pending.what) do_finish(std::exchange(pending, {}));
  }

  /// The same of elements whose type is a value, for groups that are made of others; a shift is started.
  void run(const Collective& called) {
    const CallClock clock;
    check(called);
    do_run(called);
  }
  /// @param called  an all_reduce, all_gather or reduce_scatter
  Pending start(const Collective& called) {
    const CallClock clock;
    check(called);
    return do_start(called);
  }

 protected:
  /// @param ranks  of the world, in group order  @param world_rank  this rank, one of them
  Group(std::span<const int> ranks, int world_rank)
      : ranks_(ranks.begin(), ranks.end()),
        rank_(static_cast<int>(std::ranges::find(ranks, world_rank) - ranks.begin())) {}

  [[nodiscard]] int world_rank() const { return world_rank(rank_); }
  [[nodiscard]] int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }

  virtual void do_run(const Collective& called) = 0;
  virtual void do_finish_shifts() = 0;
  /// Begins a collective, and returns what do_finish() is to be told. By default that does it all: rank threads and
  /// processes of cores compute on the cores that would carry messages.
  virtual Pending do_start(const Collective& called) { return {called}; }
  virtual void do_finish(const Pending& pending) { do_run(*pending.what); }

 private:
  template <class T>
  static Collective gathering(View<const T> shard, View<T> all, Ends ends) {
    return {CallKind::all_gather, elements_of(shard), elements_of(all), ReduceOp::sum, 0, ends};
  }
  template <class T>
  static Collective scattering(View<T> all, View<T> shard, Ends ends) {
    return {CallKind::reduce_scatter, elements_of(all), elements_of(shard), ReduceOp::sum, 0, ends};
  }
  void check(const Collective& called) const {
    const auto& [kind, from, to, op, root, ends, columns, cut] = called;
    const auto require = [](bool holds, const auto&... why) {
      if (!holds) throw Failure(ErrorKind::internal, text_of(why...));
    };
    const auto cuts = [&](Ends all) {
      return std::ssize(all) == size() && all.front() >= 0 && std::ranges::is_sorted(all);
    };
    if (kind == CallKind::all_gather || kind == CallKind::reduce_scatter) {
      const std::int64_t shard = kind == CallKind::all_gather ? from.count : to.count;
      const std::int64_t all = called.whole();
      if (!ends.empty())
        return require(cuts(ends) && ends.back() == all && called.shard(rank_).count() == shard, name_of(kind),
                       " on rank ", world_rank(), ": a shard of ", shard, " elements, and shards of ", all,
                       " elements that end at ", joined(ends), " for ", size(), " members");
      require(all == shard * size(), name_of(kind), " on rank ", world_rank(), ": the whole has ", all,
              " elements, but ", size(), " members with a shard of ", shard, " make ", shard * size());
    }
    if (kind == CallKind::all_to_all && !(ends.empty() && columns.empty()))
      require(cuts(ends) && cuts(columns) && from.count == called.shard(rank_).count() * columns.back() &&
                  to.count == ends.back() * called.own_columns(rank_).count(),
              "all_to_all on rank ", world_rank(), ": ", from.count, " elements to send and ", to.count,
              " to receive, of rows that end at ", joined(ends), " and columns that end at ", joined(columns), " for ",
              size(), " members");
    else if (kind == CallKind::all_to_all)
      require(from.count == to.count && from.count % size() == 0, "all_to_all on rank ", world_rank(), ": ", from.count,
              " elements to send and ", to.count, " to receive are not equal blocks for ", size(), " members");
    if (kind == CallKind::broadcast)
      require(root >= 0 && root < size(), "broadcast from member ", root, " of a group of ", size(),
              "; members are numbered from 0");
  }

  std::vector<int> ranks_;
  int rank_;
};

/// One rank's handle on all ranks of a run, for memory of the program or of a device. Used by one thread. When another
/// rank has failed, or has not answered within the timeout, every call throws PeerFailure.
class World {
 public:
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(everybody_.size()); }

  /// The group of these world ranks, in this order; the calling rank is one of them. Groups of the same ranks are the
  /// same group. Not collective; allocates on first use only. Handles stay valid as long as the world. Errors: a
  /// Failure if a rank does not exist or comes twice, or if the calling rank is not among them.
  virtual Group& group(std::span<const int> ranks) = 0;
  /// The group of all ranks.
  Group& everybody() { return group(everybody_); }
  /// The same ranks in a world for memory of the program, where this one is for memory of a device.
  virtual World& control() { return *this; }

  /// Offers blocks to their peers and returns; the memory must stay as it is until wait_sent(). Blocks of one lane
  /// between one pair of ranks arrive in the order in which they were posted. If an exception could free the memory, a
  /// SendGuard that lives shorter keeps the receivers from reading it then.
  void post(std::span<const Piece> pieces) {
    const CallClock clock;
    check_pieces(pieces, size());
    do_post(pieces);
  }
  /// Takes blocks from their peers, in order; returns when all have arrived. Rows of other lengths than the sender's
  /// are fine as long as the bytes of a block are as many. Errors: a Failure that names both sizes if they are not.
  void receive(std::span<const Piece> pieces) {
    const CallClock clock;
    check_pieces(pieces, size());
    do_receive(pieces);
  }
  /// Returns when every block posted by this rank has been taken: all of them, or those of one lane.
  void wait_sent(int lane = every_lane) {
    const CallClock clock;
    do_wait_sent(lane);
  }

  /// Throws PeerFailure if a rank is known to have failed. Where calls only give a device its work, a failure ends that
  /// work, and what was computed since means nothing. Worlds whose calls wait have thrown by themselves.
  virtual void check() {}
  /// For the way out of a failure: takes back blocks that nobody has taken, and returns when nobody reads or writes
  /// this rank's memory any more. After wait_sent() it does nothing.
  virtual void withdraw() noexcept {}

  /// What failed on another rank, if that is known. Any thread may ask.
  virtual std::optional<std::string> failure() { return std::nullopt; }
  /// Tells the others that this rank is failing before its body has ended; `text` names it. Any thread may call it.
  virtual void warn(const std::string& text) noexcept { (void)text; }

 protected:
  World(int rank, int size) : rank_(rank) {
    for (int i = 0; i < size; ++i) everybody_.push_back(i);
  }

  virtual void do_post(std::span<const Piece> pieces) = 0;
  virtual void do_receive(std::span<const Piece> pieces) = 0;
  virtual void do_wait_sent(int lane) = 0;

 private:
  int rank_;
  std::vector<int> everybody_;
};

/// The groups of a world, of class G, made when they are first asked for.
template <class G>
class Groups {
 public:
  /// The group of these ranks, in this order; the first call makes it, G(arguments...). Errors: see World::group().
  template <class... Arguments>
  G& find(const World& world, std::span<const int> ranks, Arguments&&... arguments) {
    for (const auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] < 0 || ranks[i] >= world.size())
        throw Failure(ErrorKind::internal,
                      text_of("a group names rank ", ranks[i], " of a world of ", world.size(), " ranks"));
      if (std::ranges::find(ranks.first(i), ranks[i]) != ranks.first(i).end())
        throw Failure(ErrorKind::internal, text_of("a group names rank ", ranks[i], " twice"));
    }
    if (std::ranges::find(ranks, world.rank()) == ranks.end())
      throw Failure(ErrorKind::internal, text_of("rank ", world.rank(), " asks for a group of ", rank_list(ranks),
                                                 ", to which it does not belong"));
    return *groups_.emplace_back(std::make_unique<G>(std::forward<Arguments>(arguments)...));
  }
  [[nodiscard]] auto begin() const { return groups_.begin(); }
  [[nodiscard]] auto end() const { return groups_.end(); }

 private:
  std::vector<std::unique_ptr<G>> groups_;
};

/// Collective: the text of rank 0, on all ranks. @param everybody  for memory of the program
inline std::string shared_text(Group& everybody, std::string text) {
  auto size = static_cast<std::int64_t>(text.size());
  everybody.broadcast(View<std::int64_t>(&size, 1), 0);
  text.resize(static_cast<std::size_t>(size));
  everybody.broadcast(View<char>(text.data(), size), 0);
  return text;
}

/// Keeps an exception from freeing memory that a peer is still copying from: lives shorter than the memory of posted
/// blocks, and withdraws them when it goes away, by an exception or not.
class SendGuard {
 public:
  explicit SendGuard(World& world) : world_(world) {}
  SendGuard(const SendGuard&) = delete;
  SendGuard& operator=(const SendGuard&) = delete;
  ~SendGuard() { world_.withdraw(); }

 private:
  World& world_;
};

}  // namespace galvatron::comm
