// Row-wise ops against double precision; rope_store against the page layout that kernels.h states.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "expect.h"
#include "stored_kv.h"

using namespace octavo;

namespace {

std::vector<float> random_row(Random& random, int64_t n, float scale) {
  std::vector<float> row;
  for (int64_t i = 0; i < n; i++) row.push_back(random.uniform() * scale);
  return row;
}

bool close(double want, double got, double tolerance) { return fabs(want - got) <= tolerance * std::max(1.0, fabs(want)); }

double silu(double x) { return x / (1 + ::exp(-x)); }
double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2.0))); }

// Activations without a gate, and gelu with one: gelu's error function is an approximation.
void test_without_gate(const KernelTable& level, const std::vector<float>& x) {
  struct { void (*kernel)(const float*, int64_t, float*); double (*value)(double); double tolerance; } cases[] = {
      {level.silu, silu, 1e-6}, {level.gelu_tanh, gelu_tanh, 1e-6}, {level.gelu, gelu, 8e-7}};
  std::vector<float> out(x.size());
  for (auto& one : cases) {
    one.kernel(x.data(), int64_t(x.size()), out.data());
    for (size_t i = 0; i < x.size(); i++)
      EXPECT(close(one.value(x[i]), out[i], one.tolerance), "%s activation(%g) = %.9g", level.level, x[i], out[i]);
  }
  level.gelu_mul(x.data(), x.data(), int64_t(x.size()), out.data());
  for (size_t i = 0; i < x.size(); i++)
    EXPECT(close(gelu(x[i]) * x[i], out[i], 3e-6), "%s gelu(%g) * %g = %.9g", level.level, x[i], x[i], out[i]);
}

void test_layer_norm(const KernelTable& level, const std::vector<float>& x, const std::vector<float>& weight) {
  double width = double(x.size()), mean = 0, squares = 0;
  for (float v : x) mean += v / width;
  for (float v : x) squares += (v - mean) * (v - mean);
  std::vector<float> out(x.size()), bias(weight.rbegin(), weight.rend());
  for (bool biased : {false, true}) {
    level.layer_norm(x.data(), weight.data(), biased ? bias.data() : nullptr, 1e-5f, int64_t(x.size()), out.data());
    for (size_t i = 0; i < x.size(); i++) {
      double want = (x[i] - mean) / sqrt(squares / width + 1e-5f) * weight[i] + (biased ? bias[i] : 0);
      EXPECT(close(want, out[i], 3e-6), "%s layer_norm of width %g: %g, not %g", level.level, width, want, out[i]);
    }
  }
}

void test_scale_and_cap(const KernelTable& level) {
  Random random(4);
  for (int count : {1, 16, 37}) {
    std::vector<float> x = random_row(random, count, 90);
    for (float cap : {0.0f, 0.5f, 30.0f}) {
      std::vector<float> out = x;
      level.scale_and_cap(out.data(), 0.7f, cap, count);
      for (int i = 0; i < count; i++) {
        double scaled = x[i] * 0.7f, want = cap == 0.0f ? scaled : cap * tanh(scaled / cap);
        EXPECT(fabs(want - out[i]) <= 3e-7 * std::max(1.0, fabs(want)) + 2e-7 * cap, "%s cap %g of %g: %.9g, not %.9g",
               level.level, cap, scaled, out[i], want);
      }
    }
  }
  std::vector<float> far = {-INFINITY, -1e30f, 1e30f, INFINITY, NAN};
  level.scale_and_cap(far.data(), 1.0f, 30.0f, 5);
  EXPECT(far[0] == -30 && far[1] == -30 && far[2] == 30 && far[3] == 30 && isnan(far[4]), "%s caps at the ends: %g %g %g %g",
         level.level, far[0], far[1], far[2], far[3]);
}

void test_rows(const KernelTable& level) {
  Random random(1);
  for (int width : {1, 15, 16, 17, 31, 48, 100, 576}) {
    std::vector<float> x = random_row(random, width, 8), y = random_row(random, width, 8), out(width);
    level.silu_mul(x.data(), y.data(), width, out.data());
    for (int i = 0; i < width; i++) {
      double want = x[i] / (1 + ::exp(-double(x[i]))) * y[i];
      EXPECT(close(want, out[i], 1e-6), "%s silu(%g) * %g = %g, not %g", level.level, x[i], y[i], want, out[i]);
    }
    level.gelu_tanh_mul(x.data(), y.data(), width, out.data());
    for (int i = 0; i < width; i++) {
      double g = x[i], want = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * y[i];
      EXPECT(close(want, out[i], 1e-6), "%s gelu(%g) * %g = %g, not %g", level.level, x[i], y[i], want, out[i]);
    }
    double squares = 0;
    for (float v : x) squares += double(v) * v;
    level.rms_norm(x.data(), y.data(), 1e-5f, width, out.data());
    for (int i = 0; i < width; i++) {
      double want = x[i] / sqrt(squares / width + 1e-5f) * y[i];
      EXPECT(close(want, out[i], 1e-6), "%s rms_norm of width %d: %g, not %g", level.level, width, want, out[i]);
    }
    out = y;
    level.add(x.data(), 0.5f, width, out.data());
    for (int i = 0; i < width; i++) EXPECT(out[i] == y[i] + x[i] * 0.5f, "%s add of width %d", level.level, width);
    test_without_gate(level, x);
    test_layer_norm(level, x, y);
  }
  // Far out both activations are 0 or the identity, never NaN.
  std::vector<float> far = {-1e30f, -200, -100, 100, 200, 1e30f}, one(6, 1.0f), out(6);
  for (auto activation : {level.silu_mul, level.gelu_tanh_mul, level.gelu_mul}) {
    activation(far.data(), one.data(), 6, out.data());
    for (int i = 0; i < 6; i++) {
      float want = far[i] < 0 ? 0 : far[i];
      EXPECT(fabs(out[i] - want) <= 1e-8f * fabs(far[i]), "%s activation(%g) = %g", level.level, far[i], out[i]);
    }
  }
}

// Positions up to 1M: the angle is a product that float32 cannot hold.
void test_rope_table(const KernelTable& level) {
  std::vector<int32_t> positions = {0, 1, 2, 17, 999, 8191, 100000, 131071, 524288, 1000000};
  std::vector<float> inv_freq;
  for (int i = 0; i < 20; i++) inv_freq.push_back(float(pow(10000.0, -i / 20.0)));
  std::vector<float> table(positions.size() * 40, NAN);
  level.rope_table({positions.data(), inv_freq.data(), 40, 1.25f, table.data()}, 0, 4);
  level.rope_table({positions.data(), inv_freq.data(), 40, 1.25f, table.data()}, 4, int32_t(positions.size()));
  for (size_t t = 0; t < positions.size(); t++)
    for (int i = 0; i < 20; i++) {
      double angle = double(positions[t]) * inv_freq[i];
      double cosine = table[t * 40 + i], sine = table[t * 40 + 20 + i];
      EXPECT(fabs(cosine - 1.25 * cos(angle)) < 2e-7 && fabs(sine - 1.25 * sin(angle)) < 2e-7,
             "%s rope at position %d, frequency %g: %.9g %.9g", level.level, positions[t], inv_freq[i], cosine, sine);
    }
}

// What rope_store should make of a head: norm, then rotation of pairs (i, i + rotary/2).
std::vector<double> rotated(const float* x, int head_dim, const float* norm, float eps, const float* rotation, int rotary) {
  std::vector<double> y(x, x + head_dim);
  if (norm) {
    double squares = 0;
    for (double v : y) squares += v * v;
    for (int d = 0; d < head_dim; d++) y[d] = y[d] / sqrt(squares / head_dim + eps) * norm[d];
  }
  int half = rotary / 2;
  std::vector<double> out = y;
  for (int i = 0; i < half && rotation; i++) {
    out[i] = y[i] * rotation[i] - y[i + half] * rotation[half + i];
    out[i + half] = y[i + half] * rotation[i] + y[i] * rotation[half + i];
  }
  return out;
}

// Half a step of the stored numbers, at most; `greatest` of those that share a scale.
double rounding_of(KvType type, double x, double greatest) {
  switch (type) {
    case KvType::f32: return 0;
    case KvType::bf16: return fabs(x) / 256;
    case KvType::f16: return fabs(x) / 2048;
    default: return fabs(greatest) / 127 * (1 + 1.0 / 256) / 2;
  }
}

void test_rope_store(const KernelTable& level, KvType type, int page_size, int head_dim, int rotary, bool norms) {
  const int tokens = 41, q_heads = 4, kv_heads = 2, layers = 2, layer = 1, blocks = 24;
  Random random(uint64_t(page_size * 1000 + head_dim + rotary));
  KvLayout kv = kv_layout(type, layers, page_size, kv_heads, head_dim);
  std::vector<uint8_t> pool(size_t(kv.page_bytes) * blocks * 2, 0xee);
  std::vector<uint8_t> expected = pool;
  kv.base = pool.data();

  // Two sequences, tokens interleaved; pages in reverse order.
  std::vector<int32_t> positions, token_seq, block_table;
  for (int t = 0; t < tokens; t++) token_seq.push_back(t % 2), positions.push_back(3 + t / 2);
  for (int b = 0; b < blocks * 2; b++) block_table.push_back(blocks * 2 - 1 - b);
  int q_stride = q_heads * head_dim + 5, k_stride = kv_heads * head_dim + 3, v_stride = kv_heads * head_dim;
  std::vector<float> q = random_row(random, int64_t(tokens) * q_stride, 2), k = random_row(random, int64_t(tokens) * k_stride, 2);
  std::vector<float> v = random_row(random, int64_t(tokens) * v_stride, 2), before = q;
  std::vector<float> q_norm = random_row(random, head_dim, 2), k_norm = random_row(random, head_dim, 2);
  std::vector<float> rotation(size_t(tokens) * std::max(rotary, 1)), inv_freq;
  for (int i = 0; i < rotary / 2; i++) inv_freq.push_back(float(pow(10000.0, -2.0 * i / rotary)));
  level.rope_table({positions.data(), inv_freq.data(), rotary, 1.0f, rotation.data()}, 0, tokens);

  RopeStoreArgs args{};
  args.kv = kv, args.layer = layer, args.q_heads = q_heads;
  args.q = q.data(), args.k = k.data(), args.v = v.data();
  args.q_stride = q_stride, args.k_stride = k_stride, args.v_stride = v_stride;
  args.positions = positions.data(), args.token_seq = token_seq.data();
  args.block_table = block_table.data(), args.block_stride = blocks;
  args.rotation = rotary ? rotation.data() : nullptr, args.rotary = rotary;
  args.q_norm = norms ? q_norm.data() : nullptr, args.k_norm = norms ? k_norm.data() : nullptr, args.norm_eps = 1e-6f;
  level.rope_store(args, 0, 7);
  level.rope_store(args, 7, tokens);

  for (int t = 0; t < tokens; t++) {
    const float* table = rotary ? rotation.data() + int64_t(t) * rotary : nullptr;
    for (int h = 0; h < q_heads; h++) {
      std::vector<double> want = rotated(before.data() + t * q_stride + h * head_dim, head_dim, args.q_norm, 1e-6f, table, rotary);
      for (int d = 0; d < head_dim; d++)
        EXPECT(close(want[d], q[t * q_stride + h * head_dim + d], 1e-6), "%s q token %d head %d dim %d", level.level, t, h, d);
    }
    int slot = positions[t] % page_size, page = block_table[token_seq[t] * blocks + positions[t] / page_size];
    for (int h = 0; h < kv_heads; h++) {
      std::vector<double> key = rotated(k.data() + t * k_stride + h * head_dim, head_dim, args.k_norm, 1e-6f, table, rotary);
      std::vector<float> value(v.data() + t * v_stride + h * head_dim, v.data() + t * v_stride + (h + 1) * head_dim);
      put_head(kv, expected.data(), layer, page, 1, h, slot, stored_head(type, value));  // V is copied: exactly this
      // K has been rounded on the way to a result that is itself rounded: it may be a step off.
      StoredHead got = head_at(kv, pool.data(), layer, page, 0, h, slot);
      for (int d = 0; d < head_dim; d++) {
        auto part = key.begin() + d / 64 * 64, end = key.begin() + std::min(d / 64 * 64 + 64, head_dim);
        double greatest = *std::max_element(part, end, [](double a, double b) { return fabs(a) < fabs(b); });
        EXPECT(fabs(got.values[d] - key[d]) <= rounding_of(type, key[d], greatest) * 1.01 + 1e-6 * std::max(1.0, fabs(key[d])),
               "%s %s page of %d: K of token %d dim %d: %g, not %g", level.level, kKvTypes[int(type)].name, page_size, t, d,
               got.values[d], key[d]);
      }
      put_head(kv, expected.data(), layer, page, 0, h, slot, got);
    }
  }
  EXPECT(pool == expected, "%s page of %d: wrote outside the tokens' slots", level.level, page_size);
}

// Parts of heads that have no ordinary scale, or numbers beyond what f16 has, beside ordinary parts: V is copied, so what
// must be stored is known.
void test_store_extremes(const KernelTable& level, KvType type, int head_dim, int begin) {
  const int page_size = 4;
  KvLayout kv = kv_layout(type, 1, page_size, 1, head_dim);
  std::vector<uint8_t> pool(size_t(kv.page_bytes), 0xee);
  kv.base = pool.data();
  const float smallest = 1e-30f;
  for (std::vector<float> first : std::vector<std::vector<float>>{{0}, {-0.0f}, {smallest / 2}, {smallest, -smallest / 3},
                                                                  {3e38f, -1}, {65519, -65520, 70000}, {6e-8f, 1e-8f, 3e-5f},
                                                                  {1, NAN}, {-INFINITY, 1}, {127, 63.5f, 0.5f, 1.5f, -2.5f}}) {
    std::vector<float> q(head_dim), k(head_dim), v(head_dim);
    for (int d = 0; d < head_dim; d++) v[d] = d / 64 == begin / 64 ? 0.0f : 0.25f * float(d % 7) - 0.6f;
    std::copy(first.begin(), first.end(), v.begin() + begin);
    int32_t position = 2, zero = 0;
    RopeStoreArgs args{};
    args.kv = kv, args.q_heads = 1, args.q = q.data(), args.k = k.data(), args.v = v.data();
    args.q_stride = args.k_stride = args.v_stride = head_dim;
    args.positions = &position, args.token_seq = &zero, args.block_table = &zero, args.block_stride = 1;
    level.rope_store(args, 0, 1);
    StoredHead want = stored_head(type, v), got = head_at(kv, pool.data(), 0, 0, 1, 0, 2);
    for (int d = 0; d < head_dim; d++) {
      bool same = isnan(want.values[d]) ? isnan(got.values[d]) : got.codes[d] == want.codes[d];
      if (type == KvType::int8) same = same && got.scales[d / 64] == want.scales[d / 64];
      EXPECT(same, "%s %s: number %d, %g, is stored as %g, not %g", level.level, kKvTypes[int(type)].name, d, v[d],
             got.values[d], want.values[d]);
    }
  }
}

}  // namespace

int main() {
  for (const KernelTable* level : all_levels()) {
    test_rows(*level);
    test_scale_and_cap(*level);
    test_rope_table(*level);
    for (KvType type : {KvType::f32, KvType::bf16, KvType::f16, KvType::int8})
      for (int page_size : {4, 8, 16, 32}) {
        if (page_size == 4)
          for (auto [head_dim, begin] : {std::pair(16, 0), {80, 0}, {80, 64}, {256, 64}})
            test_store_extremes(*level, type, head_dim, begin);
        test_rope_store(*level, type, page_size, 64, 64, false);
        test_rope_store(*level, type, page_size, 96, 48, true);
        test_rope_store(*level, type, page_size, 16, 16, true);
        test_rope_store(*level, type, page_size, 256, 0, false);
      }
  }
  return report("elementwise_test");
}
