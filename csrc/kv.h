// The KV page pool's memory.
#pragma once
#include <vector>

#include "fault_ahead.h"
#include "kernels.h"
#include "memory.h"

namespace octavo {

// Where things lie in pages of this shape (kernels.h); `base` is null. Throws std::invalid_argument if the kernels can't
// read such pages.
KvLayout kv_layout(KvType type, int32_t layers, int32_t page_size, int32_t kv_heads, int32_t head_dim);

// A group of equal layers. `window`: its layers see at most so many tokens, and pages behind them may be gone; 0: all.
struct KvShape {
  KvType type;
  int32_t layers, kv_heads, head_dim;
  int32_t window = 0;
};

// Page-major (kernels.h, KvLayout). Zero until written, and not backed by memory until touched. Groups share the pages:
// all have the bytes that the largest group needs, and what a page holds is known from whose block table it is in.
class KvMemory {
 public:
  // Throws std::invalid_argument as kv_layout does.
  KvMemory(const std::vector<KvShape>& groups, int32_t num_pages, int32_t page_size);

  int32_t groups() const { return int32_t(groups_.size()); }
  const KvShape& shape(int32_t group) const { return groups_[size_t(group)]; }
  const KvLayout& layout(int32_t group) const { return layouts_[size_t(group)]; }
  int32_t num_pages() const { return num_pages_; }
  // Throws std::invalid_argument if a page is outside the pool.
  void copy_page(int32_t source, int32_t target);
  // Pages up to this one are in use: a thread keeps memory ready a little beyond them.
  void used_up_to(int32_t page) { fault_ahead_.used((page + int64_t(1)) * page_bytes_); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  int32_t num_pages_;
  std::vector<KvShape> groups_;
  std::vector<KvLayout> layouts_;
  int64_t page_bytes_;
  Mapping memory_;
  FaultAhead fault_ahead_;
};

}  // namespace octavo
