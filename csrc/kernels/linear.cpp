// Linear layers: out = x W^T (+ bias) (+ out), for every weight format and kind of activation.
#include "../levels.h"
#include "linear_float.h"
#include "linear_int8.h"
#include "linear_pack.h"
#include "linear_prepare.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

typedef void (*LinearFn)(const LinearArgs&, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end);

// The kernel of a combination, or null if there is none. Quantised weights take int8 or f32, bf16 weights bf16 or f32,
// the others f32.
LinearFn kernel_of(WeightFormat format, ActivationKind activation) {
  using W = WeightFormat;
  using A = ActivationKind;
  if (activation == A::bf16) return format == W::bf16 ? float_linear<W::bf16, A::bf16> : nullptr;
  bool int8 = activation == A::int8;
  switch (format) {
    case W::f32: return int8 ? nullptr : float_linear<W::f32, A::f32>;
    case W::f16: return int8 ? nullptr : float_linear<W::f16, A::f32>;
    case W::bf16: return int8 ? nullptr : float_linear<W::bf16, A::f32>;
    case W::q8_0: return int8 ? int8_linear<W::q8_0> : float_linear<W::q8_0, A::f32>;
    case W::q4_0: return int8 ? int8_linear<W::q4_0> : float_linear<W::q4_0, A::f32>;
    case W::q4_1: return int8 ? int8_linear<W::q4_1> : float_linear<W::q4_1, A::f32>;
  }
  return nullptr;
}

int64_t packed_tile_bytes(WeightFormat format, ActivationKind activation, int32_t k) {
  bool whole_groups = !is_quantised(format) || k % kGroup == 0;
  return kernel_of(format, activation) && whole_groups ? tile_bytes_of(format, k) : 0;
}

void linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  kernel_of(args.weight->format, args.input.kind)(args, tile_begin, tile_end, row_begin, row_end);
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
