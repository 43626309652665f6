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

#if defined(__AVX512BF16__)

// One product more than the level below, whose other kernels this level takes as they are: compiled once more they would
// be the same instructions, and the largest part of the library.
LinearFn linear_below;

void linear(const LinearArgs& args, int32_t tile_begin, int32_t tile_end, int32_t row_begin, int32_t row_end) {
  bool own = args.weight->format == WeightFormat::bf16 && args.input.kind == ActivationKind::bf16;
  LinearFn kernel = own ? float_linear<WeightFormat::bf16, ActivationKind::bf16> : linear_below;
  kernel(args, tile_begin, tile_end, row_begin, row_end);
}

}  // namespace

void fill_linear(KernelTable* table) {
  avx512::fill_linear(table);
  linear_below = table->linear;
  table->linear = linear;
  table->prepare_row = prepare_row;
}

#else

// What a format has: kernels by kind of activation, null where there is none, and its way into tiles and out of them.
struct FormatFunctions {
  LinearFn f32, bf16, int8;
  void (*pack_column)(const uint8_t* row, int32_t k, int column, uint8_t* tile);
  void (*gather)(const PackedWeight& weight, int32_t index, float scale, float* out);
};

template <WeightFormat F>
constexpr FormatFunctions functions_for() {
  FormatFunctions out{float_linear<F, ActivationKind::f32>, nullptr, nullptr, pack_column<F>, gather<F>};
  if constexpr (F == WeightFormat::bf16) out.bf16 = float_linear<F, ActivationKind::bf16>;
  if constexpr (is_quantised(F)) out.int8 = int8_linear<F>;
  return out;
}

template <int... Formats>
struct FormatTable {
  static constexpr FormatFunctions entries[] = {functions_for<WeightFormat(Formats)>()...};
};
template <int N, int... Formats>
struct CountedTable : CountedTable<N - 1, N - 1, Formats...> {};
template <int... Formats>
struct CountedTable<0, Formats...> : FormatTable<Formats...> {};

const FormatFunctions& functions_of(WeightFormat format) { return CountedTable<kWeightFormatCount>::entries[int(format)]; }

LinearFn kernel_of(WeightFormat format, ActivationKind activation) {
  const FormatFunctions& functions = functions_of(format);
  switch (activation) {
    case ActivationKind::f32:
    case ActivationKind::bf16_as_f32: return functions.f32;
    case ActivationKind::bf16: return functions.bf16;
    case ActivationKind::int8: return functions.int8;
  }
  return nullptr;
}

int64_t packed_tile_bytes(WeightFormat format, ActivationKind activation, int32_t k) {
  return kernel_of(format, activation) && k % stored(format).block_elements == 0 ? tile_bytes_of(format, k) : 0;
}

// Columns past n stay zero in every part, so that their results are zero or unused, never read out of bounds.
void pack_tile(WeightFormat format, ActivationKind, const uint8_t* rows, int64_t row_bytes, const int32_t* row_index,
               int32_t n, int32_t k, int32_t tile, uint8_t* dst) {
  const FormatFunctions& functions = functions_of(format);
  memset(dst, 0, size_t(tile_bytes_of(format, k)));
  for (int column = 0; column < kColumns && tile * kColumns + column < n; column++) {
    int32_t index = tile * kColumns + column;
    functions.pack_column(rows + int64_t(row_index ? row_index[index] : index) * row_bytes, k, column, dst);
  }
}

void gather_row(const PackedWeight& weight, int32_t index, float scale, float* out) {
  functions_of(weight.format).gather(weight, index, scale, out);
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

#endif

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
