// Top-k, top-p and min-p without sorting the vocabulary.
//
// Ranks order ids by logit descending, ties to the lower id. A rank cut-off is found by radix selection over the logits'
// order-preserving integer keys: 256 bins over the range that is still in question sum either 1 (top-k) or the weight
// (top-p) of each id; the bin in which the sum reaches its target is the next range. Only ids that a cheap bound can't
// rule out are looked at.
#pragma once
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Ids that may still be drawn, ascending; `logit` and `weight` [vocab padded to 16] are indexed by id.
struct Candidates {
  const float* logit;
  const float* weight;  // exp((logit - max) / temperature); the largest is 1
  int32_t* id;
  uint32_t* key;        // order_key of each one's logit
  int32_t count;
};

// Larger floats have larger keys; -0 and +0 are equal (a -0 would otherwise rank below its tie).
OCTAVO_INLINE uint32_t order_key(float x) {
  uint32_t u = float_to_bits(x + 0.0f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
OCTAVO_INLINE float value_of_key(uint32_t key) {
  return bits_to_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Everything ranked above the id where a running sum by rank reaches its target, and of that id's ties the first ones.
struct CutOff {
  uint32_t key;
  double above;  // the sum over all ids with larger keys
  double target;
};

OCTAVO_INLINE double amount_of(const Candidates& c, int32_t i, bool by_weight) {
  return by_weight ? double(c.weight[c.id[i]]) : 1.0;
}

// The highest bin at which the sum from the top reaches the target; `above` becomes the sum over the bins above it.
// Rounding may leave the sum of all bins just under the target: then it is the lowest bin that holds anything.
int find_bin(const double* bins, double target, double* above) {
  int lowest = 255;
  double sum = *above;
  for (int bin = 255; bin >= 0; bin--) {
    if (!(bins[bin] > 0.0)) continue;
    lowest = bin;
    *above = sum;
    sum += bins[bin];
    if (sum >= target) break;
  }
  return lowest;
}

// `above`: what ranks above all candidates.
CutOff find_cut_off(const Candidates& c, bool by_weight, double target, double above = 0.0) {
  uint32_t low = 0xffffffffu, high = 0;
  for (int32_t i = 0; i < c.count; i++) {
    low = c.key[i] < low ? c.key[i] : low;
    high = c.key[i] > high ? c.key[i] : high;
  }
  while (low < high) {
    int shift = max_int(0, 24 - __builtin_clz(high - low));
    double bins[256] = {};
    for (int32_t i = 0; i < c.count; i++)
      if (c.key[i] >= low && c.key[i] <= high) bins[(c.key[i] - low) >> shift] += amount_of(c, i, by_weight);
    low += uint32_t(find_bin(bins, target, &above)) << shift;
    uint32_t end = low + ((1u << shift) - 1u);
    high = end < high ? end : high;
  }
  return {low, above, target};
}

void apply_cut_off(Candidates& c, bool by_weight, CutOff cut) {
  double sum = cut.above;
  int32_t kept = 0;
  for (int32_t i = 0; i < c.count; i++) {
    if (c.key[i] < cut.key) continue;
    if (c.key[i] == cut.key) {
      if (sum >= cut.target) continue;
      sum += amount_of(c, i, by_weight);
    }
    c.id[kept] = c.id[i];
    c.key[kept++] = c.key[i];
  }
  c.count = kept;
}

// Adds the ids whose value is at least `bound` (not NaN); `values` is padded with values below any bound. False if they
// are more than an eighth of a large vocabulary: those are faster treated where they lie (sampling_dense.h).
bool collect(Candidates& c, const float* values, int32_t vocab, float bound) {
  int32_t most = max_int(4096, vocab / 8);
  c.count = 0;
  for (int32_t i = 0; i < vocab && c.count <= most; i += kLanes)
    for (uint32_t mask = mask_ge(load(values + i), set1(bound)); mask; mask &= mask - 1)
      c.id[c.count++] = i + __builtin_ctz(mask);
  if (c.count > most) return false;
  for (int32_t i = 0; i < c.count; i++) c.key[i] = order_key(c.logit[c.id[i]]);
  return true;
}

// A value that at least `k` logits reach. The k-th largest of 256 maxima over disjoint sets of logits is one; above
// 256 there is no cheap bound, and every finite logit passes.
float top_k_bound(const float* logit, int32_t vocab, int32_t k) {
  constexpr int kSets = 256;
  if (k > kSets || vocab < 4 * kSets) return -3.4028235e38f;
  f32x16 best[kSets / kLanes];
  for (int j = 0; j < kSets / kLanes; j++) best[j] = load(logit + j * kLanes);
  for (int32_t i = kSets; i < vocab; i += kLanes) {
    int j = i / kLanes % (kSets / kLanes);
    best[j] = max(best[j], load(logit + i));
  }
  float maxima[kSets];
  uint32_t keys[kSets];
  for (int j = 0; j < kSets / kLanes; j++) store(maxima + j * kLanes, best[j]);
  for (int j = 0; j < kSets; j++) keys[j] = order_key(maxima[j]);
  CutOff cut = find_cut_off({nullptr, nullptr, nullptr, keys, kSets}, false, double(k));
  float bound = value_of_key(cut.key);
  return bound >= -3.4028235e38f ? bound : -3.4028235e38f;
}

double weight_sum(const Candidates& c) {
  double sum = 0.0;
  for (int32_t i = 0; i < c.count; i++) sum += double(c.weight[c.id[i]]);
  return sum;
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
