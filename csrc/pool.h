// A thread pool whose threads walk a list of stages together, and sleep between runs.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace octavo {

// `items` independent pieces of work; any thread may run any of them, each is run once. `run` must not throw.
// `thread` is 0 .. threads - 1 and belongs to one running item at a time: it indexes per-thread scratch memory.
//
// `ahead` is memory that a later stage reads, thread t of n the t-th n-th of it: a thread that has nothing left to do
// but wait fetches the beginning of its part into its cache.
struct Stage {
  void (*run)(void* context, int32_t item, int32_t thread) noexcept;
  void* context;
  int32_t items;
  const uint8_t* ahead = nullptr;
  int64_t ahead_bytes = 0;
};

// Time the calling thread saw, per stage, in nanoseconds; `wait` is the part in which it had no item to run.
struct StageTime {
  int64_t total_ns, wait_ns;
};

constexpr int32_t kMaxThreads = 1024;

class ThreadPool {
 public:
  // The calling thread counts as one: `threads - 1` are started. Throws std::invalid_argument unless threads is 1 to
  // kMaxThreads, and std::system_error if the system refuses a thread.
  explicit ThreadPool(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t threads() const { return int32_t(workers_.size()) + 1; }

  // Runs the stages in order, each after all items of the one before. Returns when everything is done. Concurrent
  // callers take turns. `times` (one entry a stage) may be null.
  void run(std::span<const Stage> stages, StageTime* times = nullptr);

 private:
  // `claim` packs (generation 32, claims 16, next claim 16), so that one compare-and-swap both takes a claim and proves
  // that the run it was meant for is still on: a thread that wakes late finds a newer generation and touches nothing.
  // A claim is one item, or of very many items several. `stage` and `items_per_claim` are read only by a thread that
  // holds a claim, and no run ends while a claim is held.
  struct alignas(64) Slot {
    std::atomic<uint64_t> claim{0};
    std::atomic<int32_t> done{0};
    int32_t items_per_claim = 1;
    Stage stage{};
    // Of `stage`, for threads that hold no claim. Atomic but otherwise unguarded: a late thread may fetch for the wrong
    // run, which is slow at worst.
    std::atomic<const uint8_t*> ahead{nullptr};
    std::atomic<int64_t> ahead_bytes{0};
  };
  // What one thread fetches ahead, and how far it is.
  struct Fetch {
    const uint8_t* whole = nullptr;
    uintptr_t at = 0, end = 0;
  };
  // Gives a core that others wait for away between two claims, now and then. A thread that the system puts off its core
  // in the middle of a claim has every other thread wait for it at the end of the stage; one that leaves between claims
  // is not missed: the others take its share. The longer it was away, the later it offers again: who computes beside us
  // for long gets a share from the system anyway.
  class Turns {
   public:
    void offer();

   private:
    int64_t due_ns_ = 0;
  };
  static constexpr int32_t kSlots = 1024;  // longer lists are run in parts
  static constexpr int32_t kMaxClaims = 65535;

  void run_part(std::span<const Stage> stages, StageTime* times);
  static void run_claim(const Slot& slot, int32_t claim, int32_t thread);
  bool fetch_ahead(const Slot& slot, int32_t thread, Fetch& fetch) const;
  bool pass_stage(Slot& slot, uint32_t generation, int32_t thread, Fetch& fetch, Turns& turns, StageTime* time);
  void worker(int32_t thread);
  void stop();

  std::unique_ptr<Slot[]> slots_;        // kSlots, and one that always ends the walk
  std::atomic<uint32_t> generation_{0};  // of the newest run; workers sleep on it
  std::atomic<bool> stopping_{false};
  std::mutex callers_;
  Turns callers_turns_;  // of whoever holds callers_
  std::vector<std::thread> workers_;
};

}  // namespace octavo
