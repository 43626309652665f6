// Rotary position embedding (Su et al. 2021, RoFormer) and the store of K and V into their pages.
#pragma once
#include "../kernels.h"
#include "../simd.h"
#include "kv_store.h"
#include "rms_norm.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Cosine and sine of angle >= 0, angle < 2^20. The angle is reduced to [-pi/4, pi/4] in double, where the product of a
// position and a float frequency is exact: float32 would be off by 0.004 rad at position 128k. Polynomials: Taylor terms
// up to x^11 and x^10, truncation below 2e-10.
OCTAVO_INLINE void cos_sin(double angle, float* cosine, float* sine) {
  double turns = (angle * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0;  // rounds to integer
  double x = angle - turns * 1.57079632673412561417;  // pi/2: 33 bits, so that the product is exact
  x = x - turns * 6.07710050650619224932e-11;         // and the rest
  double xx = x * x;
  double s = x + x * xx * (-1.0 / 6 + xx * (1.0 / 120 + xx * (-1.0 / 5040 + xx * (1.0 / 362880 - xx / 39916800))));
  double c = 1.0 + xx * (-0.5 + xx * (1.0 / 24 + xx * (-1.0 / 720 + xx * (1.0 / 40320 - xx / 3628800))));
  int quadrant = int(turns) & 3;
  double cos_value = quadrant & 1 ? s : c, sin_value = quadrant & 1 ? c : s;
  *cosine = float(quadrant == 1 || quadrant == 2 ? -cos_value : cos_value);
  *sine = float(quadrant >= 2 ? -sin_value : sin_value);
}

void rope_table(const RopeTableArgs& args, int32_t token_begin, int32_t token_end) {
  int half = args.rotary / 2;
  for (int32_t t = token_begin; t < token_end; t++) {
    float* row = args.table + int64_t(t) * args.rotary;
    double position = args.positions[t];
    for (int i = 0; i < half; i++) {
      float cosine, sine;
      cos_sin(position * double(args.inv_freq[i]), &cosine, &sine);
      row[i] = args.amplitude * cosine;
      row[half + i] = args.amplitude * sine;
    }
  }
}

// x[i], x[i + half] -> their rotation, in place.
OCTAVO_INLINE void rotate_head(float* x, const float* rotation, int half) {
  for (int i = 0; i < half; i += kLanes) {
    int n = min_int(kLanes, half - i);
    f32x16 a = load_n(x + i, n), b = load_n(x + half + i, n);
    f32x16 c = load_n(rotation + i, n), s = load_n(rotation + half + i, n);
    store_n(x + i, sub(mul(a, c), mul(b, s)), n);
    store_n(x + half + i, add(mul(b, c), mul(a, s)), n);
  }
}

OCTAVO_INLINE void normalise_and_rotate(const RopeStoreArgs& args, const float* norm, const float* rotation, float* x) {
  if (norm) rms_norm(x, norm, args.norm_eps, args.kv.head_dim, x);
  if (rotation) rotate_head(x, rotation, args.rotary / 2);
}

void rope_store(const RopeStoreArgs& args, int32_t token_begin, int32_t token_end) {
  const KvLayout& kv = args.kv;
  StoreHead store_head = kStoreHead[int(kv.type)];
  int head_dim = kv.head_dim;
  for (int32_t t = token_begin; t < token_end; t++) {
    const float* rotation = args.rotation ? args.rotation + int64_t(t) * args.rotary : nullptr;
    for (int h = 0; h < args.q_heads; h++)
      normalise_and_rotate(args, args.q_norm, rotation, args.q + t * args.q_stride + h * head_dim);

    int32_t position = args.positions[t];
    int32_t page = args.block_table[args.token_seq[t] * args.block_stride + position / kv.page_size];
    for (int h = 0; h < kv.kv_heads; h++) {
      float key[kMaxHeadDim];
      memcpy(key, args.k + t * args.k_stride + h * head_dim, size_t(head_dim) * 4);
      normalise_and_rotate(args, args.k_norm, rotation, key);
      store_head(head_slot(kv, args.layer, page, h, position % kv.page_size), key, args.v + t * args.v_stride + h * head_dim);
    }
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
