// Row-wise ops: norms, gated activations, rotary embedding and the store of K and V into pages.
#include "../levels.h"
#include "../simd.h"
#include "rms_norm.h"
#include "rope.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

void add_rows(const float* x, int64_t width, float* inout) {
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    store_n(inout + i, add(load_n(inout + i, n), load_n(x + i, n)), n);
  }
}

constexpr float kLog2E = 1.44269504088896341f;

// a * sigmoid(x), given -x * log2(e).
OCTAVO_INLINE f32x16 times_sigmoid(f32x16 a, f32x16 exponent) {
  return div(a, add(set1(1.0f), exp2(min(exponent, set1(127.0f)))));
}

// out = gate * sigmoid(gate) * up.
void silu_mul(const float* gate, const float* up, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    f32x16 g = load_n(gate + i, n);
    f32x16 active = times_sigmoid(g, mul(g, set1(-kLog2E)));
    store_n(out + i, mul(active, load_n(up + i, n)), n);
  }
}

// out = gelu(gate) * up with the tanh form of gelu (Hendrycks and Gimpel 2016):
// g/2 * (1 + tanh(u)) = g / (1 + e^-2u), u = sqrt(2/pi) * (g + 0.044715 g^3).
void gelu_tanh_mul(const float* gate, const float* up, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    f32x16 g = load_n(gate + i, n);
    f32x16 exponent = mul(mul(g, set1(-1.5957691216057308f * kLog2E)), fma(mul(g, g), set1(0.044715f), set1(1.0f)));
    f32x16 active = times_sigmoid(g, exponent);
    store_n(out + i, mul(active, load_n(up + i, n)), n);
  }
}

}  // namespace

void fill_elementwise(KernelTable* table) {
  table->rms_norm = rms_norm;
  table->add = add_rows;
  table->silu_mul = silu_mul;
  table->gelu_tanh_mul = gelu_tanh_mul;
  table->rope_table = rope_table;
  table->rope_store = rope_store;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
