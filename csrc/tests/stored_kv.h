// What pages hold by kernels.h (KvLayout), written down a second time, independently of the kernels.
#pragma once
#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "../kv.h"

namespace octavo {

inline uint16_t to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float from_bf16(uint16_t h) {
  uint32_t u = uint32_t(h) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

// The nearest multiple of the last place there, as a count of it beside the exponent.
inline uint16_t to_f16(float f) {
  uint16_t sign = signbit(f) ? 0x8000 : 0;
  if (f == 0) return sign;
  if (isnan(f)) return 0x7e00;
  if (isinf(f)) return uint16_t(sign | 0x7c00);
  int exponent;
  frexp(f, &exponent);                        // |f| in [2^(exponent - 1), 2^exponent)
  int last = std::max(exponent - 11, -24);    // of the last place
  long count = lrint(ldexp(fabs(double(f)), -last));
  return uint16_t(sign | std::min(count + (long(last + 24) << 10), 0x7c00L));
}
inline float from_f16(uint16_t h) {
  int exponent = h >> 10 & 31, mantissa = h & 1023;
  double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                                : ldexp(exponent ? 1024 + mantissa : mantissa, std::max(exponent, 1) - 25);
  return float(h & 0x8000 ? -value : value);
}

// One token's K or V of one head. `codes`: the bits of each number; `values`: what they stand for; `scales`: of each 64
// numbers, of int8 only.
struct StoredHead {
  std::vector<uint32_t> codes;
  std::vector<float> values;
  std::vector<uint16_t> scales;
};

inline StoredHead stored_head(KvType type, const std::vector<float>& x) {
  StoredHead head;
  head.codes.reserve(x.size()), head.values.reserve(x.size());
  float scale = 0, inverse = 0;
  for (size_t d = 0; d < x.size(); d++) {
    if (type == KvType::int8 && d % 64 == 0) {
      float greatest = 0;
      for (size_t i = d; i < std::min(d + 64, x.size()); i++)
        greatest = isfinite(x[i]) ? std::max(greatest, fabsf(x[i])) : NAN;
      head.scales.push_back(greatest < 1e-30f ? 0 : isnan(greatest) ? 0x7fc0 : to_bf16(greatest / 127.0f));
      scale = from_bf16(head.scales.back()), inverse = greatest >= 1e-30f ? 1.0f / scale : 0.0f;
    }
    float v = x[d];
    uint32_t code = 0;
    switch (type) {
      case KvType::f32: memcpy(&code, &v, 4), head.values.push_back(v); break;
      case KvType::bf16: code = isnan(v) ? 0x7fc0 : to_bf16(v), head.values.push_back(from_bf16(uint16_t(code))); break;
      case KvType::f16: code = to_f16(v), head.values.push_back(from_f16(uint16_t(code))); break;
      case KvType::int8:
        int number = inverse > 0 ? int(nearbyintf(v * inverse)) : 0;
        code = uint8_t(number), head.values.push_back(float(number) * scale);
    }
    head.codes.push_back(code);
  }
  return head;
}

// Byte of a number in its plane. which: 0 K, 1 V.
inline int64_t number_at(const KvLayout& kv, int which, int slot, int d) {
  int bytes = kKvTypes[int(kv.type)].element_bytes, pack = 4 / bytes;
  int64_t lane = which == 0 ? int64_t(d / pack) * kv.page_size + slot : int64_t(slot / pack) * kv.head_dim + d;
  int place = (which == 0 ? d : slot) % pack;
  if (pack == 4) place = place % 2 * 2 + place / 2;  // 0, 2, 1, 3
  return lane * 4 + place * bytes;
}

inline int64_t plane_at(const KvLayout& kv, int layer, int32_t page, int which, int head) {
  return page * kv.page_bytes + layer * kv.layer_bytes + (which * kv.kv_heads + head) * kv.plane_bytes;
}

inline int64_t scale_at(const KvLayout& kv, int layer, int32_t page, int which, int head, int part, int slot) {
  int parts = (kv.head_dim + 63) / 64, index = ((2 * head + which) * parts + part) * kv.page_size + slot;
  return page * kv.page_bytes + kv.scale_offset + layer * kv.layer_scale_bytes + 2 * index;
}

inline void put_head(const KvLayout& kv, uint8_t* pool, int layer, int32_t page, int which, int head, int slot,
                     const StoredHead& stored) {
  int bytes = kKvTypes[int(kv.type)].element_bytes;
  for (int d = 0; d < kv.head_dim; d++)
    memcpy(pool + plane_at(kv, layer, page, which, head) + number_at(kv, which, slot, d), &stored.codes[size_t(d)], size_t(bytes));
  for (int part = 0; part < int(stored.scales.size()); part++)
    memcpy(pool + scale_at(kv, layer, page, which, head, part, slot), &stored.scales[size_t(part)], 2);
}

// What is there, as `put_head` has written it.
inline StoredHead head_at(const KvLayout& kv, const uint8_t* pool, int layer, int32_t page, int which, int head, int slot) {
  StoredHead stored;
  for (int part = 0; kv.type == KvType::int8 && part * 64 < kv.head_dim; part++) {
    stored.scales.push_back(0);
    memcpy(&stored.scales.back(), pool + scale_at(kv, layer, page, which, head, part, slot), 2);
  }
  for (int d = 0; d < kv.head_dim; d++) {
    uint32_t code = 0;
    memcpy(&code, pool + plane_at(kv, layer, page, which, head) + number_at(kv, which, slot, d),
           size_t(kKvTypes[int(kv.type)].element_bytes));
    float value = 0;
    if (kv.type == KvType::f32) memcpy(&value, &code, 4);
    else if (kv.type == KvType::bf16) value = from_bf16(uint16_t(code));
    else if (kv.type == KvType::f16) value = from_f16(uint16_t(code));
    else value = float(int8_t(code)) * from_bf16(stored.scales[size_t(d / 64)]);
    stored.codes.push_back(code);
    stored.values.push_back(value);
  }
  return stored;
}

}  // namespace octavo
