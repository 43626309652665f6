// Linear layers: out = x W^T (+ bias) (+ out), for every weight format and kind of activation.
#include "../levels.h"
#include "linear_int8.h"
#include "linear_pack.h"
#include "linear_prepare.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

bool combination_exists(WeightFormat format, ActivationKind activation) {
  if (activation == ActivationKind::f32) return true;
  return activation == ActivationKind::int8 ? is_quantised(format) : format == WeightFormat::bf16;
}

int64_t packed_tile_bytes(WeightFormat format, ActivationKind activation, int32_t k) {
  if (!combination_exists(format, activation) || (is_quantised(format) && k % kGroup)) return 0;
  return tile_bytes_of(format, k);
}

f32x16 weights_at(WeightFormat format, const uint8_t* tile, int32_t k, int32_t i) {
  float w[kColumns];
  QuantTile parts = quant_tile(format, tile, k);
  switch (format) {
    case WeightFormat::f32: return load((const float*)tile + int64_t(i) * kColumns);
    case WeightFormat::f16: return load_f16((const uint16_t*)tile + int64_t(i) * kColumns);
    case WeightFormat::bf16:
      for (int c = 0; c < kColumns; c++)
        w[c] = bf16_to_f32(((const uint16_t*)tile)[(int64_t(i / 2) * kColumns + c) * 2 + i % 2]);
      break;
    default:
      for (int c = 0; c < kColumns; c++) w[c] = quantised_element(format, parts, c, i);
  }
  return load(w);
}

f32x16 float_columns(WeightFormat format, const uint8_t* tile, int32_t k, ActivationKind kind, const uint8_t* row) {
  f32x16 acc = zero();
  for (int32_t i = 0; i < k; i++) {
    float x = kind == ActivationKind::bf16 ? bf16_to_f32(((const uint16_t*)row)[i]) : ((const float*)row)[i];
    acc = fma(weights_at(format, tile, k, i), set1(x), acc);
  }
  return acc;
}

void float_linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  const PackedWeight& weight = *args.weight;
  for (int32_t t = tile_begin; t < tile_end; t++)
    for (int32_t r = row_begin; r < row_end; r++)
      Finisher(args, t, r).write_next(float_columns(weight.format, tile_of(args, t), weight.k, args.input.kind, row_of(args, r)));
}

void linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  auto* run = float_linear;
  if (args.input.kind == ActivationKind::int8) {
    switch (args.weight->format) {
      case WeightFormat::q8_0: run = int8_linear<WeightFormat::q8_0>; break;
      case WeightFormat::q4_0: run = int8_linear<WeightFormat::q4_0>; break;
      default: run = int8_linear<WeightFormat::q4_1>;
    }
  }
  run(args, tile_begin, tile_end, row_begin, row_end);
}

}  // namespace

void fill_linear(KernelTable* table) {
  table->packed_tile_bytes = packed_tile_bytes;
  table->pack_tile = pack_tile;
  table->prepared_row_bytes = prepared_row_bytes;
  table->prepare_row = prepare_row;
  table->linear = linear;
  table->gather_row = gather_row;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
