// The ceilings of a roofline: every level counts its own work, and reads stay inside their buffers.
#include "peaks.h"

#include <cstring>
#include <stdexcept>

#include "check.h"

namespace {

using namespace octavo;

template <typename Call>
bool refused(Call call, const char* part) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return std::strstr(error.what(), part) != nullptr;
  }
  return false;
}

void test_operations_grow_with_rounds(const KernelTable& kernels) {
  for (ActivationKind kind : {ActivationKind::f32, ActivationKind::bf16, ActivationKind::int8}) {
    int64_t one = kernels.peak(kind, 1);
    CHECK(kernels.peak(kind, 7) == 7 * one);
    bool has = kind != ActivationKind::bf16 || std::strcmp(kernels.level, "avx512_bf16") == 0;
    CHECK((one > 0) == has);
  }
}

void test_rates(const KernelTable& kernels) {
  ThreadPool pool(3);
  CHECK(peak_operations_per_s(kernels, pool, ActivationKind::f32, 0.001) > 1e6);
  CHECK((peak_operations_per_s(kernels, pool, ActivationKind::bf16, 0.001) > 1e6) ==
        (kernels.peak(ActivationKind::bf16, 1) > 0));
  CHECK(memory_bytes_per_s(kernels, pool, int64_t(3) << 20, 0.001) > 1e6);
  CHECK(cache_bytes_per_s(kernels, pool, 64 << 10, 0.001) > 1e6);
  CHECK(refused([&] { memory_bytes_per_s(kernels, pool, 1000, 0.001); }, "at least 1 MiB"));
  CHECK(refused([&] { cache_bytes_per_s(kernels, pool, 100, 0.001); }, "at least 512 bytes"));
}

}  // namespace

int main() {
  const KernelTable* tables[8];
  int levels = supported_levels(tables, 8);
  for (int i = 0; i < levels; i++) {
    test_operations_grow_with_rounds(*tables[i]);
    test_rates(*tables[i]);
  }
  std::puts("peaks_test: ok");
}
