// Which ISA levels this build holds and this machine can run. CPUID alone is not enough: the operating system must
// save the wide registers too (XGETBV), which GCC's __builtin_cpu_supports checks.
#include <cstdlib>
#include <cstring>

#include "levels.h"

namespace octavo {
namespace {

struct Level {
  const char* name;
  bool (*runs)();
  void (*fill)(KernelTable*);
};

#define OCTAVO_FILL(name_)             \
  [](KernelTable* table) {               \
    table->level = #name_;              \
    name_::fill_elementwise(table);      \
    name_::fill_activations(table);      \
    name_::fill_linear(table);           \
    name_::fill_attention(table);        \
    name_::fill_sampling(table);         \
    name_::fill_peaks(table);            \
  }

#if defined(OCTAVO_HAS_avx2)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

const Level kLevels[] = {
#if defined(OCTAVO_HAS_avx512_bf16)
    {"avx512_bf16", has_avx512_bf16, OCTAVO_FILL(avx512_bf16)},
#endif
#if defined(OCTAVO_HAS_avx512)
    {"avx512", has_avx512, OCTAVO_FILL(avx512)},
#endif
#if defined(OCTAVO_HAS_avx2)
    {"avx2", has_avx2, OCTAVO_FILL(avx2)},
#endif
    {"generic", [] { return true; }, OCTAVO_FILL(generic)},
};
constexpr int kCount = sizeof(kLevels) / sizeof(kLevels[0]);

const KernelTable* table_of(int i) {
  static KernelTable tables[kCount];
  static const bool filled = [] {
    for (int j = 0; j < kCount; j++)
      if (kLevels[j].runs()) kLevels[j].fill(&tables[j]);  // even the filling is compiled for its level
    return true;
  }();
  (void)filled;
  return &tables[i];
}

}  // namespace

int supported_levels(const KernelTable** out, int max) {
  int count = 0;
  for (int i = 0; i < kCount && count < max; i++)
    if (kLevels[i].runs()) out[count++] = table_of(i);
  return count;
}

const KernelTable* find_level(const char* name, const char** error) {
  if (!name) name = std::getenv("OCTAVO_ISA");
  for (int i = 0; i < kCount; i++) {
    if (name && *name && std::strcmp(name, kLevels[i].name) != 0) continue;
    if (kLevels[i].runs()) return table_of(i);
    if (name && *name) {
      *error = "this CPU or operating system does not support that ISA level";
      return nullptr;
    }
  }
  *error = "unknown ISA level; known are generic, avx2, avx512, avx512_bf16";
  return nullptr;
}

}  // namespace octavo
