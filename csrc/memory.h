// Anonymous memory that is zero and costs nothing until it is touched.
#pragma once
#include <cstdint>
#include <vector>

namespace octavo {

// One mapping, aligned to huge pages, which the kernel is asked for: weights and KV are read in full every step, and
// with 4 KiB pages the walks for their addresses show.
class Mapping {
 public:
  Mapping() = default;
  // Throws std::runtime_error, with the size, if the system refuses the address space.
  explicit Mapping(int64_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Backs the whole pages of [begin, end) with memory now, without changing what they hold, so other threads may be
  // using them.
  void fault_in(int64_t begin, int64_t end) const;

 private:
  void* mapped_ = nullptr;
  int64_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Hands out 64-byte aligned zeroed memory that lives as long as the arena.
class Arena {
 public:
  uint8_t* take(int64_t bytes);
  template <typename T>
  T* take_array(int64_t count) {
    return reinterpret_cast<T*>(take(count * int64_t(sizeof(T))));
  }
  int64_t bytes_taken() const { return taken_; }

 private:
  static constexpr int64_t kChunkBytes = int64_t(32) << 20;
  std::vector<Mapping> chunks_;
  int64_t used_ = 0;  // of the last chunk
  int64_t taken_ = 0;
};

}  // namespace octavo
