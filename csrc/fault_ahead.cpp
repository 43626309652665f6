#include "fault_ahead.h"

#include <sys/resource.h>

#include <algorithm>

namespace octavo {

FaultAhead::~FaultAhead() {
  goal_.store(kStop, std::memory_order_relaxed);
  goal_.notify_one();
  thread_.join();
}

void FaultAhead::used(int64_t bytes) {
  int64_t all = (memory_.bytes() + kChunkBytes - 1) / kChunkBytes;
  uint32_t goal = uint32_t(std::min(all, (bytes + kChunkBytes - 1) / kChunkBytes + kChunksAhead));
  if (goal <= goal_.load(std::memory_order_relaxed)) return;
  goal_.store(goal, std::memory_order_relaxed);
  goal_.notify_one();
}

void FaultAhead::loop() {
#if defined(__linux__)
  setpriority(PRIO_PROCESS, 0, 19);  // on Linux this is the calling thread: kernels come first
#endif
  for (uint32_t done = 0;;) {
    uint32_t goal = goal_.load(std::memory_order_relaxed);
    if (goal == kStop) return;
    if (done < goal) {
      memory_.fault_in(done * kChunkBytes, (done + 1) * kChunkBytes);
      done++;
    } else {
      goal_.wait(goal, std::memory_order_relaxed);
    }
  }
}

}  // namespace octavo
