// Top-k, top-p and min-p without sorting the vocabulary.
//
// Ranks order ids by logit descending, ties to the lower id. A rank cut-off is found by radix selection: four passes
// over eight bits each of the logits' order-preserving integer keys, summing per bin either 1 (top-k) or the weight
// (top-p), and descending into the bin in which the sum reaches its target. Only ids that a cheap bound can't rule out
// are looked at.
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
  int32_t count;
};

// Larger floats have larger keys; -0 and +0 are equal (a -0 would otherwise rank below its tie).
OCTAVO_INLINE uint32_t order_key(float x) {
  uint32_t u = float_to_bits(x + 0.0f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Everything ranked above the id where a running sum by rank reaches its target, and of that id's ties the first ones.
struct CutOff {
  uint32_t key;
  double above;  // the sum over all ids with larger keys
  double target;
};

OCTAVO_INLINE double amount_of(const Candidates& c, int32_t id, bool by_weight) {
  return by_weight ? double(c.weight[id]) : 1.0;
}

CutOff find_cut_off(const Candidates& c, bool by_weight, double target) {
  CutOff cut = {0, 0.0, target};
  uint32_t known = 0;  // bits of cut.key that are settled
  for (int shift = 24; shift >= 0; shift -= 8) {
    double bins[256] = {};
    for (int32_t i = 0; i < c.count; i++) {
      uint32_t key = order_key(c.logit[c.id[i]]);
      if ((key & known) == cut.key) bins[key >> shift & 255] += amount_of(c, c.id[i], by_weight);
    }
    // Rounding may leave the sum of all bins just under the target: then the lowest bin that holds anything is it.
    int bin = 255, lowest = 255;
    double above = cut.above;
    for (; bin >= 0; bin--) {
      if (bins[bin] > 0.0) lowest = bin;
      if (bins[bin] > 0.0 && above + bins[bin] >= target) break;
      above += bins[bin];
    }
    if (bin < 0) {
      bin = lowest;
      above -= bins[bin];
    }
    cut.above = above;
    cut.key |= uint32_t(bin) << shift;
    known |= 255u << shift;
  }
  return cut;
}

void apply_cut_off(Candidates& c, bool by_weight, CutOff cut) {
  double sum = cut.above;
  int32_t kept = 0;
  for (int32_t i = 0; i < c.count; i++) {
    int32_t id = c.id[i];
    uint32_t key = order_key(c.logit[id]);
    if (key < cut.key) continue;
    if (key == cut.key) {
      if (sum >= cut.target) continue;
      sum += amount_of(c, id, by_weight);
    }
    c.id[kept++] = id;
  }
  c.count = kept;
}

// Adds the ids whose value is at least `bound` (not NaN); `values` is padded with values below any bound.
void collect(Candidates& c, const float* values, int32_t vocab, float bound) {
  c.count = 0;
  for (int32_t i = 0; i < vocab; i += kLanes)
    for (uint32_t mask = mask_ge(load(values + i), set1(bound)); mask; mask &= mask - 1)
      c.id[c.count++] = i + __builtin_ctz(mask);
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
  int32_t ids[kSets];
  for (int j = 0; j < kSets / kLanes; j++) store(maxima + j * kLanes, best[j]);
  for (int j = 0; j < kSets; j++) ids[j] = j;
  CutOff cut = find_cut_off({maxima, nullptr, ids, kSets}, false, double(k));
  float bound = bits_to_float(cut.key & 0x80000000u ? cut.key & 0x7fffffffu : ~cut.key);
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
