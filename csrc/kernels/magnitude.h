#pragma once
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// The greatest magnitude of x[0 .. count), count a multiple of 16, or NaN if there is a NaN or an infinity.
OCTAVO_INLINE float magnitude(const float* x, int32_t count) {
  f32x16 largest = zero(), poison = zero();
  for (int32_t i = 0; i < count; i += kLanes) {
    f32x16 a = load(x + i);
    largest = max(abs(a), largest);
    poison = add(poison, sub(a, a));
  }
  return reduce_max(largest) + reduce_add(poison);
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
