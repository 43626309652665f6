#include "peaks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "memory.h"
#include "op.h"

namespace octavo {
namespace {

constexpr int32_t kItemsPerThread = 16;
constexpr int64_t kItemNs = 300000;  // long against a claim, short against the system's time slices
constexpr int64_t kPieceBytes = int64_t(1) << 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The best rate of runs of one stage, each of which does `amount`, until the time is up.
double best_rate(ThreadPool& pool, const Stage& stage, double amount, double seconds) {
  double best = 0.0;
  for (double begin = now(), end = begin; end - begin < seconds || best == 0.0;) {
    double start = now();
    pool.run({&stage, 1});
    end = now();
    best = std::max(best, amount / (end - start));
  }
  return best;
}

struct Arithmetic {
  const KernelTable& kernels;
  ActivationKind kind;
  int64_t rounds;
  void item(int32_t, int32_t) noexcept { kernels.peak(kind, rounds); }
};

struct Reading {
  const KernelTable& kernels;
  Mapping memory;
  int64_t bytes;    // of one piece
  int32_t repeat;   // of a cached piece, in one item
  void piece(int32_t item, int32_t) noexcept { kernels.read(memory.data() + item * bytes, bytes, true); }
  void cached(int32_t, int32_t thread) noexcept {
    for (int32_t i = 0; i < repeat; i++) kernels.read(memory.data() + thread * bytes, bytes, false);
  }

  Reading(const KernelTable& kernels, int64_t total, int64_t bytes, int32_t repeat)
      : kernels(kernels), memory(total), bytes(bytes), repeat(repeat) {
    std::memset(memory.data(), 1, size_t(total));  // pages that were never written are all the same zeros
  }
};

}  // namespace

double peak_operations_per_s(const KernelTable& kernels, ThreadPool& pool, ActivationKind kind, double seconds) {
  Arithmetic work{kernels, kind, 1024};
  if (kernels.peak(kind, 1) == 0) return 0.0;
  for (double took = 0.0; took < double(kItemNs) * 1e-9; work.rounds *= 2) {
    double start = now();
    kernels.peak(kind, work.rounds);
    took = now() - start;
  }
  int32_t items = kItemsPerThread * pool.threads();
  double amount = double(items) * double(kernels.peak(kind, work.rounds));
  return best_rate(pool, stage_of(&work, items), amount, seconds);
}

double memory_bytes_per_s(const KernelTable& kernels, ThreadPool& pool, int64_t bytes, double seconds) {
  int32_t pieces = int32_t(bytes / kPieceBytes);
  if (pieces < 1) throw std::invalid_argument("the buffer must hold at least 1 MiB");
  // The last piece is fetched beyond its end, which is harmless: prefetches don't fault.
  Reading work(kernels, pieces * kPieceBytes, kPieceBytes, 1);
  Stage stage = {[](void* self, int32_t item, int32_t thread) noexcept { static_cast<Reading*>(self)->piece(item, thread); },
                 &work, pieces};
  return best_rate(pool, stage, double(pieces) * double(kPieceBytes), seconds);
}

double cache_bytes_per_s(const KernelTable& kernels, ThreadPool& pool, int64_t bytes_per_thread, double seconds) {
  int64_t bytes = bytes_per_thread / 512 * 512;
  if (bytes < 512) throw std::invalid_argument("a thread's buffer must hold at least 512 bytes");
  int32_t repeat = int32_t(std::max<int64_t>(1, (int64_t(32) << 20) / bytes)), items = kItemsPerThread * pool.threads();
  Reading work(kernels, bytes * pool.threads(), bytes, repeat);
  Stage stage = {[](void* self, int32_t item, int32_t thread) noexcept { static_cast<Reading*>(self)->cached(item, thread); },
                 &work, items};
  return best_rate(pool, stage, double(items) * repeat * double(bytes), seconds);
}

}  // namespace octavo
