// The KV page pool's memory.
#pragma once
#include "fault_ahead.h"
#include "kernels.h"
#include "memory.h"

namespace octavo {

// Where things lie in pages of this shape (kernels.h); `base` is null. Throws std::invalid_argument if the kernels can't
// read such pages.
KvLayout kv_layout(KvType type, int32_t layers, int32_t page_size, int32_t kv_heads, int32_t head_dim);

// Page-major (kernels.h, KvLayout). Zero until written, and not backed by memory until touched.
class KvMemory {
 public:
  // Throws std::invalid_argument as kv_layout does.
  KvMemory(KvType type, int32_t num_pages, int32_t layers, int32_t page_size, int32_t kv_heads, int32_t head_dim);

  const KvLayout& layout() const { return layout_; }
  int32_t num_pages() const { return num_pages_; }
  int32_t layers() const { return layers_; }
  // Throws std::invalid_argument if a page is outside the pool.
  void copy_page(int32_t source, int32_t target);
  // Pages up to this one are in use: a thread keeps memory ready a little beyond them.
  void used_up_to(int32_t page) { fault_ahead_.used((page + int64_t(1)) * layout_.page_bytes); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  int32_t num_pages_, layers_;
  KvLayout layout_;
  Mapping memory_;
  FaultAhead fault_ahead_;
};

}  // namespace octavo
