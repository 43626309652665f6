// The most that this level's instructions can do: chains of multiply-adds that never leave the registers, and plain reads.
// Rooflines are made of these (csrc/peaks.h); no op calls them.
#include "../levels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// Independent chains: enough to hide the latency of two multiply-adds a cycle, few enough for the registers.
#if defined(__AVX512F__) || !defined(__AVX2__)
constexpr int kChains = 12;
#else
constexpr int kChains = 5;  // of two registers each
#endif

// The compiler must take `value` as read, and as changed: equal chains would become one.
template <typename T>
OCTAVO_INLINE void use(T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

#if defined(__AVX2__) || defined(__AVX512F__)
typedef f32x16 Chain;
OCTAVO_INLINE Chain times_half_plus_half(Chain a) { return fma(a, set1(0.5f), set1(0.5f)); }
#else
typedef float Chain __attribute__((vector_size(16)));  // GCC would keep larger ones in memory
OCTAVO_INLINE Chain times_half_plus_half(Chain a) { return a * 0.5f + 0.5f; }
#endif

OCTAVO_NOINLINE int64_t peak_f32(int64_t rounds) {
  Chain sums[kChains] = {};
  use(sums);
  for (int64_t round = 0; round < rounds; round++) {
    OCTAVO_UNROLL
    for (int i = 0; i < kChains; i++) sums[i] = times_half_plus_half(sums[i]);
  }
  use(sums);
  return rounds * kChains * int64_t(sizeof(Chain) / 4) * 2;
}

#if defined(__AVX512BF16__)
OCTAVO_NOINLINE int64_t peak_bf16(int64_t rounds) {
  __m512 sums[kChains];
  __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  OCTAVO_UNROLL
  for (int i = 0; i < kChains; i++) sums[i] = _mm512_setzero_ps();
  use(sums);
  for (int64_t round = 0; round < rounds; round++) {
    OCTAVO_UNROLL
    for (int i = 0; i < kChains; i++) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  }
  use(sums);
  return rounds * kChains * 32 * 2;
}
#else
int64_t peak_bf16(int64_t) { return 0; }
#endif

#if defined(__AVX512F__)
OCTAVO_NOINLINE int64_t peak_int8(int64_t rounds) {
  __m512i sums[kChains], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
  OCTAVO_UNROLL
  for (int i = 0; i < kChains; i++) sums[i] = _mm512_setzero_si512();
  use(sums);
  for (int64_t round = 0; round < rounds; round++) {
    OCTAVO_UNROLL
    for (int i = 0; i < kChains; i++) sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
  }
  use(sums);
  return rounds * kChains * 64 * 2;
}
#elif defined(__AVX2__)
// As the 4-bit kernel does it: four products of bytes are summed in 16 bits, then widened.
OCTAVO_NOINLINE int64_t peak_int8(int64_t rounds) {
  constexpr int kSums = 4;
  __m256i sums[kSums], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2), ones = _mm256_set1_epi16(1);
  OCTAVO_UNROLL
  for (int i = 0; i < kSums; i++) sums[i] = _mm256_setzero_si256();
  use(sums);
  for (int64_t round = 0; round < rounds; round++) {
    OCTAVO_UNROLL
    for (int i = 0; i < kSums; i++) {
      __m256i pairs = _mm256_setzero_si256();
      OCTAVO_UNROLL
      for (int j = 0; j < 4; j++) {
        asm volatile("" : "+x"(a));  // or the products would be taken out of the loop
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(a, b));
      }
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
    }
  }
  use(sums);
  return rounds * kSums * 4 * 32 * 2;
}
#else
// What the compiler makes of sixteen dot products, written as in the kernel.
OCTAVO_NOINLINE void dot_four(const uint8_t (*weights)[64], const int8_t* x, i32x16* sums) {
  i32x16 dot = *sums;
  for (int i = 0; i < 4; i++) {
    const uint8_t* w = weights[i];
    const int8_t* q = x + 4 * i;
    for (int c = 0; c < kLanes; c++)
      dot.v[c] += w[4 * c] * q[0] + w[4 * c + 1] * q[1] + w[4 * c + 2] * q[2] + w[4 * c + 3] * q[3];
  }
  *sums = dot;
}

int64_t peak_int8(int64_t rounds) {
  uint8_t weights[4][64];
  int8_t x[16];
  i32x16 sums = {};
  memset(weights, 3, sizeof(weights));
  memset(x, -2, sizeof(x));
  for (int64_t round = 0; round < rounds; round++) dot_four(weights, x, &sums);
  use(sums);
  return rounds * 4 * 64 * 2;
}
#endif

int64_t peak(ActivationKind kind, int64_t rounds) {
  switch (kind) {
    case ActivationKind::f32:
    case ActivationKind::bf16_as_f32: return peak_f32(rounds);
    case ActivationKind::bf16: return peak_bf16(rounds);
    case ActivationKind::int8: return peak_int8(rounds);
  }
  return 0;
}

typedef uint64_t u64v __attribute__((vector_size(64)));

// Eight cache lines a turn. Ahead of what is read, memory is fetched as the linear kernel does.
template <bool Ahead>
OCTAVO_NOINLINE void read_lines(const uint8_t* data, int64_t bytes) {
  constexpr int kLines = 8;
  constexpr int64_t kAheadBytes = 16 << 10;
  u64v sums[kLines] = {};
  for (int64_t at = 0; at + 64 * kLines <= bytes; at += 64 * kLines) {
    OCTAVO_UNROLL
    for (int i = 0; i < kLines; i++) {
      if constexpr (Ahead) __builtin_prefetch(data + at + 64 * i + kAheadBytes, 0, 2);
      u64v line;
      memcpy(&line, data + at + 64 * i, 64);
      sums[i] ^= line;
    }
  }
  use(sums);
}

void read(const uint8_t* data, int64_t bytes, bool ahead) {
  if (ahead) read_lines<true>(data, bytes);
  else read_lines<false>(data, bytes);
}

}  // namespace

void fill_peaks(KernelTable* table) {
  table->peak = peak;
  table->read = read;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
