// Row-wise ops: activations with and without a gate, layer norm, and adding rows.
#include "../levels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

// a * sigmoid(x), given -x * log2(e).
OCTAVO_INLINE f32x16 times_sigmoid(f32x16 a, f32x16 exponent) {
  return div(a, add(set1(1.0f), exp2(min(exponent, set1(127.0f)))));
}

struct Silu {
  OCTAVO_INLINE f32x16 of(f32x16 x) { return times_sigmoid(x, mul(x, set1(-kLog2E))); }
};

// The tanh form of gelu (Hendrycks and Gimpel 2016): x/2 * (1 + tanh(u)) = x / (1 + e^-2u),
// u = sqrt(2/pi) * (x + 0.044715 x^3).
struct GeluTanh {
  OCTAVO_INLINE f32x16 of(f32x16 x) {
    return times_sigmoid(x, mul(mul(x, set1(-1.5957691216057308f * kLog2E)), fma(mul(x, x), set1(0.044715f), set1(1.0f))));
  }
};

// gelu with the error function: max(x, 0) - |x|/2 * erfc(|x| / sqrt(2)); erfc by Abramowitz and Stegun 7.1.26, within
// 1.5e-7: e^(-z^2) times a polynomial in t = 1 / (1 + 0.3275911 z).
struct Gelu {
  OCTAVO_INLINE f32x16 of(f32x16 x) {
    f32x16 z = mul(min(abs(x), set1(100.0f)), set1(0.70710678118654752f));
    f32x16 t = div(set1(1.0f), fma(z, set1(0.3275911f), set1(1.0f)));
    f32x16 p = set1(1.061405429f);
    p = fma(p, t, set1(-1.453152027f));
    p = fma(p, t, set1(1.421413741f));
    p = fma(p, t, set1(-0.284496736f));
    p = fma(p, t, set1(0.254829592f));
    f32x16 erfc = mul(mul(p, t), exp2(mul(mul(z, z), set1(-kLog2E))));
    return sub(max(x, zero()), mul(mul(abs(x), set1(0.5f)), erfc));
  }
};

template <class Function>
void activate(const float* x, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    store_n(out + i, Function::of(load_n(x + i, n)), n);
  }
}

template <class Function>
void activate_mul(const float* gate, const float* up, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    store_n(out + i, mul(Function::of(load_n(gate + i, n)), load_n(up + i, n)), n);
  }
}

// gpt-oss: g = min(gate, limit), u = clip(up, -limit, limit), g * sigmoid(alpha * g) * (u + 1).
void clamped_swiglu(const float* gate, const float* up, float alpha, float limit, int64_t width, float* out) {
  f32x16 high = set1(limit), low = set1(-limit), one = set1(1.0f), factor = set1(-alpha * kLog2E);
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    f32x16 g = min(load_n(gate + i, n), high), u = max(min(load_n(up + i, n), high), low);
    store_n(out + i, mul(times_sigmoid(g, mul(g, factor)), add(u, one)), n);
  }
}

// tanh(y) = 1 - 2 / (e^2y + 1). Minus infinity stays what it is without a cap, and becomes -cap with one.
void scale_and_cap(float* x, float scale, float cap, int64_t count) {
  f32x16 factor = set1(scale), one = set1(1.0f), two = set1(2.0f), height = set1(cap);
  for (int64_t i = 0; i < count; i += kLanes) {
    int n = int(min_i64(kLanes, count - i));
    f32x16 a = mul(load_n(x + i, n), factor);
    if (cap != 0.0f) {
      f32x16 e = exp2(min(set1(126.0f), mul(a, set1(2.0f * kLog2E / cap))));  // this way round NaN stays NaN
      a = mul(height, sub(one, div(two, add(e, one))));
    }
    store_n(x + i, a, n);
  }
}

void add_rows(const float* x, float scale, int64_t width, float* inout) {
  f32x16 factor = set1(scale);
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    store_n(inout + i, add(load_n(inout + i, n), mul(load_n(x + i, n), factor)), n);
  }
}

// out = (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016). Both sums run in 16 lanes over ascending
// columns; the variance is of what is left after the mean has been taken away.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* out) {
  f32x16 sum = zero(), squares = zero();
  for (int64_t i = 0; i < width; i += kLanes) sum = add(sum, load_n(x + i, int(min_i64(kLanes, width - i))));
  f32x16 mean = set1(reduce_add(sum) / float(width));
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    f32x16 a = select_n(sub(load_n(x + i, n), mean), zero(), n);
    squares = fma(a, a, squares);
  }
  f32x16 scale = set1(1.0f / __builtin_sqrtf(reduce_add(squares) / float(width) + eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    int n = int(min_i64(kLanes, width - i));
    f32x16 a = mul(mul(sub(load_n(x + i, n), mean), scale), load_n(weight + i, n));
    store_n(out + i, bias ? add(a, load_n(bias + i, n)) : a, n);
  }
}

}  // namespace

void fill_activations(KernelTable* table) {
  table->layer_norm = layer_norm;
  table->add = add_rows;
  table->scale_and_cap = scale_and_cap;
  table->silu = activate<Silu>;
  table->gelu_tanh = activate<GeluTanh>;
  table->gelu = activate<Gelu>;
  table->silu_mul = activate_mul<Silu>;
  table->gelu_tanh_mul = activate_mul<GeluTanh>;
  table->gelu_mul = activate_mul<Gelu>;
  table->clamped_swiglu = clamped_swiglu;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
