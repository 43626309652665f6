// Every weight format once: how a file stores it. Plain data, for kernels, bindings and tests alike.
#pragma once
#include <stdint.h>

namespace octavo {

// Values of octavo.formats.tensor.TensorType.
enum class WeightFormat : int32_t {
  f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4
};

struct StoredFormat {
  WeightFormat format;
  const char* name;
  int32_t block_elements;  // consecutive elements of a row
  int32_t block_bytes;     // that they take together
};

constexpr StoredFormat kWeightFormats[] = {
    {WeightFormat::f32, "f32", 1, 4},         {WeightFormat::f16, "f16", 1, 2},
    {WeightFormat::bf16, "bf16", 1, 2},       {WeightFormat::q8_0, "q8_0", 32, 34},
    {WeightFormat::q4_0, "q4_0", 32, 18},     {WeightFormat::q4_1, "q4_1", 32, 20},
    {WeightFormat::q5_0, "q5_0", 32, 22},     {WeightFormat::q5_1, "q5_1", 32, 24},
    {WeightFormat::q2_k, "q2_k", 256, 84},    {WeightFormat::q3_k, "q3_k", 256, 110},
    {WeightFormat::q4_k, "q4_k", 256, 144},   {WeightFormat::q5_k, "q5_k", 256, 176},
    {WeightFormat::q6_k, "q6_k", 256, 210},   {WeightFormat::iq4_nl, "iq4_nl", 32, 18},
    {WeightFormat::iq4_xs, "iq4_xs", 256, 136}, {WeightFormat::mxfp4, "mxfp4", 32, 17},
};
constexpr int32_t kWeightFormatCount = int32_t(sizeof kWeightFormats / sizeof kWeightFormats[0]);

// Each level compiles its own copy (csrc/simd.h), so these may not be shared inline functions.
static inline __attribute__((always_inline)) constexpr const StoredFormat& stored(WeightFormat format) {
  return kWeightFormats[int32_t(format)];
}
static inline __attribute__((always_inline)) constexpr bool is_quantised(WeightFormat format) {
  return stored(format).block_elements > 1;
}

}  // namespace octavo
