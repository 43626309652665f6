// What a caller must see to; nanobind makes a ValueError of it.
#pragma once
#include <stdexcept>
#include <string>

namespace octavo {

// Throws std::invalid_argument unless `holds`.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace octavo
