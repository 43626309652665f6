#pragma once
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019). The sum runs in 16 lanes over ascending columns.
void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* out) {
  f32x16 sum = zero();
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
    f32x16 a = load(x + i);
    sum = fma(a, a, sum);
  }
  if (i < width) {
    f32x16 a = load_n(x + i, int(width - i));
    sum = fma(a, a, sum);
  }
  f32x16 scale = set1(1.0f / __builtin_sqrtf(reduce_add(sum) / float(width) + eps));
  for (i = 0; i + 16 <= width; i += 16) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < width) {
    int n = int(width - i);
    store_n(out + i, mul(mul(load_n(x + i, n), scale), load_n(weight + i, n)), n);
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
