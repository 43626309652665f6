// Checks that say more than their condition and go on after a failure, and a deterministic random source.
#pragma once
#include <stdint.h>
#include <stdio.h>

#include <vector>

#include "../kernels.h"

static int g_checks = 0, g_failures = 0;

// EXPECT(condition, "printf format", values...): prints the first failures and goes on.
#define EXPECT(condition, ...)                                        \
  do {                                                               \
    g_checks++;                                                      \
    if (!(condition) && g_failures++ < 20) {                         \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                  \
      fputc('\n', stderr);                                           \
    }                                                                \
  } while (0)

// What main returns.
static inline int report(const char* name) {
  printf("%s: %d checks, %d failures\n", name, g_checks, g_failures);
  return g_failures ? 1 : 0;
}

static inline std::vector<const octavo::KernelTable*> all_levels() {
  const octavo::KernelTable* tables[8];
  int count = octavo::supported_levels(tables, 8);
  return {tables, tables + count};
}

// xorshift64*: the same numbers on every machine.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t bits() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
  }
  int below(int n) { return int((bits() >> 33) % uint64_t(n)); }
  float uniform() { return float(bits() >> 40) / float(1 << 23) - 1.0f; }  // [-1, 1)
};
