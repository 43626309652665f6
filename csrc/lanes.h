// Items that read memory in sequence, cut so that each thread has a stretch of its own.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace octavo {

// Splits `items` into one run of neighbours a thread; whoever has finished its own takes what is left of the others'.
//
// With claims handed out one after the other, what a core fetches ahead of the item it works on is the next core's
// item: every line is brought into the wrong second-level cache first. A lane's thread fetches for itself.
class Lanes {
 public:
  Lanes() = default;
  explicit Lanes(int32_t most) : lanes_(std::make_unique<Lane[]>(size_t(most))), most_(most) {}

  // Before a run, on one thread: nothing has been taken.
  void reset(int32_t items) {
    count_ = items < most_ ? items : most_;
    items_ = items;
    for (int32_t i = 0; i < count_; i++) {
      lanes_[size_t(i)].next.store(begin_of(i), std::memory_order_relaxed);
      lanes_[size_t(i)].end = begin_of(i + 1);
    }
  }
  int32_t count() const { return count_; }
  // The items of a thread's own lane.
  int32_t begin(int32_t thread) const { return begin_of(thread % count_); }
  int32_t end(int32_t thread) const { return lanes_[size_t(thread % count_)].end; }

  // Calls take(item) until no item is left anywhere, beginning with the thread's own lane; to be run `count` times, by
  // any threads. All items have been run when all of these runs have ended.
  template <typename Take>
  void run(int32_t thread, Take take) noexcept {
    for (int32_t i = 0; i < count_; i++) {
      Lane& from = lanes_[size_t((thread + i) % count_)];
      while (from.next.load(std::memory_order_relaxed) < from.end) {
        int32_t item = from.next.fetch_add(1, std::memory_order_relaxed);
        if (item < from.end) take(item);
      }
    }
  }

 private:
  struct alignas(64) Lane {
    std::atomic<int32_t> next{0};
    int32_t end = 0;
  };
  int32_t begin_of(int32_t lane) const { return int32_t(int64_t(items_) * lane / count_); }

  std::unique_ptr<Lane[]> lanes_;
  int32_t most_ = 0, count_ = 0, items_ = 0;
};

}  // namespace octavo
