// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a random number is a function
// of (seed, choice, position), so no state is kept and nothing else in a batch can move it.
#pragma once
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

struct PhiloxBlock { uint32_t word[4]; };

OCTAVO_INLINE PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ key0, n2 = uint32_t(p0 >> 32) ^ c3 ^ key1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    c0 = n0;
    c2 = n2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// In [0, 1), 53 bits. `purpose` tells several numbers of one position apart.
OCTAVO_INLINE double uniform(uint64_t seed, uint32_t choice, uint64_t position, uint32_t purpose) {
  PhiloxBlock r = philox4x32({{uint32_t(position), uint32_t(position >> 32), choice, purpose}}, uint32_t(seed),
                             uint32_t(seed >> 32));
  return (double(r.word[0] >> 5) * 67108864.0 + double(r.word[1] >> 6)) / 9007199254740992.0;
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
