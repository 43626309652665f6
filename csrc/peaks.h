// What this machine can do at most, measured on the threads of a pool: the ceilings of a roofline.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "pool.h"

namespace octavo {

// Multiply-adds of this kind (two operations each) a second on all threads of the pool; 0 if the level has no
// instruction for them. Takes about `seconds`, and returns the best part of that.
double peak_operations_per_s(const KernelTable& kernels, ThreadPool& pool, ActivationKind kind, double seconds);

// Bytes a second that all threads read together from one buffer of `bytes`. One that no cache holds gives the memory's
// bandwidth.
double memory_bytes_per_s(const KernelTable& kernels, ThreadPool& pool, int64_t bytes, double seconds);

// The same, each thread from a buffer of its own, again and again. One of a few 100 KiB gives the cache's bandwidth.
double cache_bytes_per_s(const KernelTable& kernels, ThreadPool& pool, int64_t bytes_per_thread, double seconds);

}  // namespace octavo
