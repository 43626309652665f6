// One token's K and V of one head into their slot of a page (kernels.h, KvLayout).
#pragma once
#include "../kernels.h"
#include "../simd.h"
#include "magnitude.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Where it goes: the planes and scales of one kv head in one layer of a page.
struct HeadSlot {
  uint8_t *keys, *values;
  uint8_t *key_scales, *value_scales;
  int slot, page_size, head_dim;
};

HeadSlot head_slot(const KvLayout& kv, int layer, int32_t page, int head, int slot) {
  uint8_t *at = kv.base + page * kv.page_bytes, *planes = at + layer * kv.layer_bytes;
  uint8_t* scales = at + kv.scale_offset + layer * kv.layer_scale_bytes + head * (kv.layer_scale_bytes / kv.kv_heads);
  return {planes + head * kv.plane_bytes, planes + (kv.kv_heads + head) * kv.plane_bytes,
          scales, scales + kv.layer_scale_bytes / kv.kv_heads / 2, slot, kv.page_size, kv.head_dim};
}

void store_head_f32(const HeadSlot& to, const float* key, const float* value) {
  for (int d = 0; d < to.head_dim; d++) memcpy(to.keys + 4 * (int64_t(d) * to.page_size + to.slot), key + d, 4);
  memcpy(to.values + 4 * int64_t(to.slot) * to.head_dim, value, size_t(to.head_dim) * 4);
}

template <void (*kStore)(uint16_t*, f32x16)>
void store_head_pairs(const HeadSlot& to, const float* key, const float* value) {
  uint16_t k[kMaxHeadDim], v[kMaxHeadDim];
  for (int d = 0; d < to.head_dim; d += kLanes) {
    kStore(k + d, load(key + d));
    kStore(v + d, load(value + d));
  }
  for (int d = 0; d < to.head_dim; d += 2) memcpy(to.keys + 4 * (int64_t(d / 2) * to.page_size + to.slot), k + d, 4);
  uint8_t* row = to.values + 4 * int64_t(to.slot / 2) * to.head_dim + 2 * (to.slot & 1);
  for (int d = 0; d < to.head_dim; d++) memcpy(row + 4 * d, v + d, 2);
}

constexpr uint16_t kNanScale = 0x7fc0;  // positive: readers look for the greatest scale by its bits

// Rounds a part of a head to multiples of its scale, whose bf16 it returns.
uint16_t quantise_part(const float* x, int numbers, int8_t* out) {
  float greatest = magnitude(x, numbers);
  uint16_t scale = greatest < 1e-30f ? 0 : greatest != greatest ? kNanScale : f32_to_bf16(greatest / 127.0f);
  f32x16 inverse = set1(greatest >= 1e-30f ? 1.0f / bf16_to_f32(scale) : 0.0f);
  for (int d = 0; d < numbers; d += kLanes) {
    int32_t rounded[kLanes];
    store(rounded, to_i32(mul(load(x + d), inverse)));
    for (int i = 0; i < kLanes; i++) out[d + i] = int8_t(rounded[i]);
  }
  return scale;
}

// Rounds a head part by part; the scales go to the slot's places, those of each part page_size apart.
void quantise_head(const HeadSlot& to, const float* x, int8_t* out, uint8_t* scales) {
  for (int d = 0, at = to.slot; d < to.head_dim; d += kScaleNumbers, at += to.page_size) {
    uint16_t scale = quantise_part(x + d, min_int(kScaleNumbers, to.head_dim - d), out + d);
    memcpy(scales + 2 * at, &scale, 2);
  }
}

void store_head_int8(const HeadSlot& to, const float* key, const float* value) {
  int8_t k[kMaxHeadDim], v[kMaxHeadDim];
  quantise_head(to, key, k, to.key_scales);
  quantise_head(to, value, v, to.value_scales);
  for (int d = 0; d < to.head_dim; d += 4) {
    int8_t four[4] = {k[d], k[d + 2], k[d + 1], k[d + 3]};
    memcpy(to.keys + int64_t(d) * to.page_size + 4 * to.slot, four, 4);
  }
  int place = (to.slot & 1) * 2 + (to.slot >> 1 & 1);
  int8_t* row = (int8_t*)to.values + int64_t(to.slot / 4) * 4 * to.head_dim + place;
  for (int d = 0; d < to.head_dim; d++) row[4 * d] = v[d];
}

// By KvType.
using StoreHead = void (*)(const HeadSlot&, const float*, const float*);
constexpr StoreHead kStoreHead[] = {store_head_f32, store_head_pairs<store_bf16>, store_head_pairs<store_f16>,
                                    store_head_int8};
static_assert(sizeof(kStoreHead) / sizeof(StoreHead) == kKvTypeCount);

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
