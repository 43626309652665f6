// Top-k and top-p when most of the vocabulary is in question: a flat distribution, or a large k.
//
// Gathering tens of thousands of ids costs more than one histogram of all of them. Bins are equal steps down from the
// largest logit; the bin in which the sum from the top reaches its target is gathered and searched as
// sampling_select.h does, and ids ranked below the cut-off lose their weight where it lies.
#pragma once
#include "sampling_select.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr int kBins = 1024;

// From a logit to its bin: 0 holds the largest, the last one all that lies `range` or more below.
struct BinScale {
  float largest, range, per_unit;
};

OCTAVO_INLINE BinScale bin_scale(float largest, float range) {
  if (!(range < 1e30f)) range = 1e30f;
  return {largest, range, range > 0.0f ? float(kBins - 1) / range : 0.0f};
}

// Whole numbers, monotone in the logit, minus infinity included.
OCTAVO_INLINE f32x16 bins_of(BinScale scale, f32x16 logit) {
  return round_even(mul(min(sub(set1(scale.largest), logit), set1(scale.range)), set1(scale.per_unit)));
}

// The lowest finite logit; there is one, and none is plus infinity.
float lowest_finite(const float* logit, int32_t padded) {
  f32x16 minus_infinity = set1(bits_to_float(0xff800000u)), lowest = set1(3.4028235e38f);
  for (int32_t i = 0; i < padded; i += kLanes) {
    f32x16 l = load(logit + i);
    f32x16 finite = keep_ge(l, l, set1(-3.4028235e38f)), instead = keep_ge(set1(3.4028235e38f), minus_infinity, l);
    lowest = min(lowest, add(finite, instead));
  }
  float lanes[kLanes];
  store(lanes, lowest);
  for (int i = 1; i < kLanes; i++) lanes[0] = lanes[i] < lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

// The first bin at which the sum from the top reaches the target; `above` becomes the sum over the bins before it.
// Rounding may leave the sum of all bins just under the target: then it is the last bin that holds anything.
int bin_of_target(const double* bins, double target, double* above) {
  int found = 0;
  double sum = 0.0;
  for (int bin = 0; bin < kBins; bin++) {
    if (!(bins[bin] > 0.0)) continue;
    found = bin;
    *above = sum;
    sum += bins[bin];
    if (sum >= target) break;
  }
  return found;
}

// Weights with the logits they belong to, [vocab padded to a multiple of 16]; what may not be drawn weighs 0.
struct Dense {
  const float* logit;
  float* weight;
  int32_t padded;
  Candidates scratch;
};

// The cut-off where the ids ranked above it reach `target`, each counting 1 or its weight. Logits more than `most_range`
// under the largest share a bin.
CutOff dense_cut_off(Dense& d, bool by_weight, double target, float largest, float most_range) {
  float range = largest - lowest_finite(d.logit, d.padded);
  BinScale scale = bin_scale(largest, range < most_range ? range : most_range);
  double bins[kBins] = {};
  int32_t at[kLanes];
  for (int32_t i = 0; i < d.padded; i += kLanes) {
    store(at, to_i32(bins_of(scale, load(d.logit + i))));
    for (int j = 0; j < kLanes; j++) bins[at[j]] += by_weight ? double(d.weight[i + j]) : 1.0;
  }
  double above = 0.0;
  f32x16 bin = set1(float(bin_of_target(bins, target, &above)));
  Candidates& c = d.scratch;
  c.count = 0;
  for (int32_t i = 0; i < d.padded; i += kLanes) {
    f32x16 b = bins_of(scale, load(d.logit + i));
    for (uint32_t mask = mask_ge(b, bin) & mask_ge(bin, b); mask; mask &= mask - 1)
      c.id[c.count++] = i + __builtin_ctz(mask);
  }
  for (int32_t i = 0; i < c.count; i++) c.key[i] = order_key(c.logit[c.id[i]]);
  return find_cut_off(c, by_weight, target, above);
}

// Takes the weight of every id ranked below the cut-off.
void apply_dense(Dense& d, bool by_weight, CutOff cut) {
  f32x16 lowest = set1(value_of_key(cut.key));
  double sum = cut.above;
  for (int32_t i = 0; i < d.padded; i += kLanes) {
    f32x16 l = load(d.logit + i);
    store(d.weight + i, keep_ge(load(d.weight + i), l, lowest));
    for (uint32_t ties = mask_ge(l, lowest) & mask_ge(lowest, l); ties; ties &= ties - 1) {
      int32_t id = i + __builtin_ctz(ties);
      if (sum >= cut.target) d.weight[id] = 0.0f;
      else sum += by_weight ? double(d.weight[id]) : 1.0;
    }
  }
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
