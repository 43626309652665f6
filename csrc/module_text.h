#pragma once
#include <nanobind/nanobind.h>

namespace octavo {

void bind_text(nanobind::module_& m);

}  // namespace octavo
