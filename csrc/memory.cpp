#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {
namespace {

constexpr int64_t kHugePage = int64_t(2) << 20;
constexpr int64_t kSmallPage = 4096;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

Mapping::Mapping(int64_t bytes) : bytes_(bytes) {
  if (bytes <= 0) throw std::runtime_error("cannot map " + std::to_string(bytes) + " bytes of memory");
  mapped_bytes_ = round_up(bytes, kHugePage) + kHugePage;
  void* p = mmap(nullptr, size_t(mapped_bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED)
    throw std::runtime_error("the system refused to map " + std::to_string(bytes) +
                             " bytes of memory: choose a smaller pool with --kv-cache-memory-bytes, or raise the limit "
                             "of this process (ulimit -v)");
  mapped_ = p;
  data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<int64_t>(p), kHugePage));
#if defined(MADV_HUGEPAGE)
  madvise(data_, size_t(round_up(bytes, kHugePage)), MADV_HUGEPAGE);  // a wish: refusal changes speed only
#endif
}

Mapping::~Mapping() {
  if (mapped_) munmap(mapped_, size_t(mapped_bytes_));
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Mapping::fault_in(int64_t begin, int64_t end) const {
  begin = std::clamp<int64_t>(begin / kSmallPage * kSmallPage, 0, bytes_);
  end = std::clamp<int64_t>(end, 0, bytes_);
  if (begin >= end) return;
#if defined(MADV_POPULATE_WRITE)
  if (madvise(data_ + begin, size_t(end - begin), MADV_POPULATE_WRITE) == 0) return;
#endif
  // Older kernels: an atomic addition of nothing touches a page and can't lose a concurrent write.
  for (int64_t at = begin; at < end; at += kSmallPage) __atomic_fetch_add(data_ + at, uint8_t(0), __ATOMIC_RELAXED);
}

uint8_t* Arena::take(int64_t bytes) {
  int64_t rounded = round_up(std::max<int64_t>(bytes, 1), 64);
  if (chunks_.empty() || used_ + rounded > chunks_.back().bytes()) {
    chunks_.emplace_back(std::max(rounded, kChunkBytes));
    used_ = 0;
  }
  uint8_t* p = chunks_.back().data() + used_;
  used_ += rounded;
  taken_ += rounded;
  return p;
}

}  // namespace octavo
