// Memory that is ready before it is needed.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

#include "memory.h"

namespace octavo {

// A background thread that backs a mapping with memory a little ahead of where it is used: the system zeroes a huge page
// in a fraction of a millisecond to several, which a step would feel, and backing all of a large pool at once would cost
// memory that nobody needs yet. It sleeps unless the use has grown.
class FaultAhead {
 public:
  // `memory` must outlive this.
  explicit FaultAhead(const Mapping& memory) : memory_(memory), thread_(&FaultAhead::loop, this) {}
  ~FaultAhead();
  FaultAhead(const FaultAhead&) = delete;
  FaultAhead& operator=(const FaultAhead&) = delete;

  // The first `bytes` are or will be in use. One thread at a time.
  void used(int64_t bytes);

 private:
  static constexpr int64_t kChunkBytes = int64_t(2) << 20;  // a huge page
  static constexpr uint32_t kChunksAhead = 32;
  static constexpr uint32_t kStop = 0xffffffffu;

  void loop();

  const Mapping& memory_;
  std::atomic<uint32_t> goal_{0};  // chunks to back
  std::thread thread_;
};

}  // namespace octavo
