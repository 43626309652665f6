// Row-wise ops: RMS norm, rotary embedding and the store of K and V into pages.
#include "../levels.h"
#include "../simd.h"
#include "rms_norm.h"
#include "rope.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

}  // namespace

void fill_elementwise(KernelTable* table) {
  table->rms_norm = rms_norm;
  table->rope_table = rope_table;
  table->rope_store = rope_store;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
