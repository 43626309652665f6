#include "pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

constexpr uint64_t pack_claim(uint32_t generation, int32_t claims) {
  return uint64_t(generation) << 32 | uint64_t(uint32_t(claims)) << 16;
}
constexpr uint32_t generation_of(uint64_t claim) { return uint32_t(claim >> 32); }
constexpr int32_t claims_of(uint64_t claim) { return int32_t(claim >> 16 & 0xffff); }
constexpr int32_t next_of(uint64_t claim) { return int32_t(claim & 0xffff); }

int32_t ceil_div(int32_t a, int32_t b) { return int32_t((int64_t(a) + b - 1) / b); }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for other threads: first on the core (about 20 us: most stages end within it), then offering the core to
// whoever needs it, perhaps the very thread that holds the last item.
class Backoff {
 public:
  void pause() {
    if (spins_ < kSpins) {
      spins_++;
      cpu_relax();
    } else {
      sched_yield();
    }
  }

 private:
  static constexpr int kSpins = 1000;
  int spins_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int32_t threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; it must be from 1 to " +
                                std::to_string(kMaxThreads));
  slots_ = std::make_unique<Slot[]>(kSlots + 1);
  try {
    for (int32_t i = 1; i < threads; i++) workers_.emplace_back(&ThreadPool::worker, this, i);
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::span<const Stage> stages, StageTime* times) {
  std::lock_guard<std::mutex> turn(callers_);
  for (size_t begin = 0; begin < stages.size(); begin += kSlots) {
    size_t count = std::min(stages.size() - begin, size_t(kSlots));
    run_part(stages.subspan(begin, count), times ? times + begin : nullptr);
  }
}

void ThreadPool::run_part(std::span<const Stage> stages, StageTime* times) {
  // Nobody holds a claim here, so nobody else reads `stage` or adds to `done`; and a slot joins the new run only by
  // the release store of its claim word, after its other fields.
  uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  if (generation == 0) generation = 1;  // 0 marks slots that never ran
  for (size_t i = 0; i < stages.size(); i++) {
    int32_t per_claim = std::max(ceil_div(stages[i].items, kMaxClaims), 1);
    slots_[i].stage = stages[i];
    slots_[i].items_per_claim = per_claim;
    slots_[i].ahead_bytes.store(stages[i].ahead_bytes, std::memory_order_relaxed);
    slots_[i].ahead.store(stages[i].ahead, std::memory_order_relaxed);
    slots_[i].done.store(0, std::memory_order_relaxed);
    slots_[i].claim.store(pack_claim(generation, ceil_div(stages[i].items, per_claim)), std::memory_order_release);
  }
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();
  Fetch fetch;
  for (size_t i = 0; i < stages.size(); i++)
    pass_stage(slots_[i], generation, 0, fetch, callers_turns_, times ? times + i : nullptr);
}

void ThreadPool::Turns::offer() {
  constexpr int64_t kTurnNs = 300'000, kTimesAway = 10;
  int64_t left = now_ns();
  if (left < due_ns_) return;
  sched_yield();  // returns at once where nobody waits
  int64_t back = now_ns();
  due_ns_ = back + std::max(kTurnNs, kTimesAway * (back - left));
}

void ThreadPool::run_claim(const Slot& slot, int32_t claim, int32_t thread) {
  int32_t begin = claim * slot.items_per_claim, end = std::min(slot.stage.items, begin + slot.items_per_claim);
  for (int32_t item = begin; item < end; item++) slot.stage.run(slot.stage.context, item, thread);
}

// Asks for a little more of what this thread will read next. False if there is nothing more to ask for.
bool ThreadPool::fetch_ahead(const Slot& slot, int32_t thread, Fetch& fetch) const {
  // At most a share of a core's second-level cache, in pieces short enough that a finished stage is noticed.
  constexpr int64_t kMostBytes = 384 << 10, kPiece = 1024, kLine = 64;
  const uint8_t* whole = slot.ahead.load(std::memory_order_relaxed);
  if (whole != fetch.whole) {
    int64_t part = slot.ahead_bytes.load(std::memory_order_relaxed) / threads();
    uintptr_t begin = reinterpret_cast<uintptr_t>(whole) + uintptr_t(part * thread);
    fetch = {whole, begin, begin + uintptr_t(std::min(part, kMostBytes))};
  }
  if (fetch.at >= fetch.end) return false;
  for (int64_t i = 0; i < kPiece; i += kLine) __builtin_prefetch(reinterpret_cast<const void*>(fetch.at + uintptr_t(i)), 0, 2);
  fetch.at += kPiece;
  return true;
}

// Runs items of one stage until all are done. False if the stage does not belong to that run (any more).
bool ThreadPool::pass_stage(Slot& slot, uint32_t generation, int32_t thread, Fetch& fetch, Turns& turns,
                            StageTime* time) {
  int64_t begin = time ? now_ns() : 0, idle_since = begin;
  Backoff backoff;
  for (;;) {
    uint64_t claim = slot.claim.load(std::memory_order_acquire);
    if (generation_of(claim) != generation) return false;
    if (next_of(claim) < claims_of(claim)) {
      turns.offer();
      if (slot.claim.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        run_claim(slot, next_of(claim), thread);
        slot.done.fetch_add(1, std::memory_order_release);
        if (time) idle_since = now_ns();
      }
    } else if (slot.done.load(std::memory_order_acquire) == claims_of(claim)) {
      break;
    } else if (!fetch_ahead(slot, thread, fetch)) {
      backoff.pause();
    }
  }
  if (time) {
    int64_t end = now_ns();
    *time = {end - begin, end - idle_since};
  }
  return true;
}

void ThreadPool::worker(int32_t thread) {
  uint32_t seen = 0;
  Turns turns;
  for (;;) {
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // The walk ends at the first slot of another generation, at the latest at the spare one.
    Fetch fetch;
    for (int32_t i = 0; pass_stage(slots_[i], seen, thread, fetch, turns, nullptr);) i++;
  }
}

}  // namespace octavo
