// Python bindings.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kernels.h"

namespace nb = nanobind;
using FloatRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

namespace {

const octavo::KernelTable& level_or_throw(const std::string& name) {
  const char* error = nullptr;
  const octavo::KernelTable* table = octavo::find_level(name.empty() ? nullptr : name.c_str(), &error);
  if (!table) throw nb::value_error(("ISA level '" + name + "': " + error).c_str());
  return *table;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("supported_levels", [] {
    const octavo::KernelTable* tables[8];
    std::vector<std::string> names;
    int count = octavo::supported_levels(tables, 8);
    for (int i = 0; i < count; i++) names.push_back(tables[i]->level);
    return names;
  }, "ISA levels this build holds and this machine can run, best first.");
  m.def("rms_norm", [](const std::string& level, FloatRow x, FloatRow weight, float eps, FloatRow out) {
    level_or_throw(level).rms_norm(x.data(), weight.data(), eps, int64_t(x.shape(0)), out.data());
  });
}
