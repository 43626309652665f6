// Arrays that come from Python: type, shape and layout are proved before a pointer is taken from them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

namespace octavo {

using InputArray = nanobind::ndarray<nanobind::ro>;
using OutputArray = nanobind::ndarray<>;

template <typename T>
const char* dtype_name() {
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
}

// Throws TypeError unless the array has T's dtype and `ndim` dimensions, ValueError unless it is C-contiguous.
template <typename T, typename Array>
void require_array(const Array& array, const std::string& name, size_t ndim) {
  if (array.dtype() != nanobind::dtype<T>() || array.ndim() != ndim || array.device_type() != nanobind::device::cpu::value)
    throw nanobind::type_error(
        (name + " must be a " + dtype_name<T>() + " array of " + std::to_string(ndim) + " dimensions").c_str());
  for (size_t i = 0; i < ndim; i++)
    if (array.shape(i) == 0) return;  // strides of an empty array mean nothing
  int64_t stride = 1;
  for (size_t i = ndim; i-- > 0;) {
    if (array.shape(i) > 1 && array.stride(i) != stride) throw std::invalid_argument(name + " must be C-contiguous");
    stride *= int64_t(array.shape(i));
  }
}

// At least `least` entries along dimension `axis`.
template <typename Array>
void require_length(const Array& array, const std::string& name, size_t axis, int64_t least) {
  if (int64_t(array.shape(axis)) < least)
    throw std::invalid_argument(name + " has length " + std::to_string(array.shape(axis)) + " along axis " +
                                std::to_string(axis) + "; it needs at least " + std::to_string(least));
}

template <typename T>
const T* input(const InputArray& array, const std::string& name, int64_t least) {
  require_array<T>(array, name, 1);
  require_length(array, name, 0, least);
  return static_cast<const T*>(array.data());
}

template <typename T>
T* output(const OutputArray& array, const std::string& name, int64_t least) {
  require_array<T>(array, name, 1);
  require_length(array, name, 0, least);
  return static_cast<T*>(array.data());
}

// [rows][columns] with at least `least` rows.
template <typename T>
T* output_matrix(const OutputArray& array, const std::string& name, int64_t least, int64_t columns) {
  require_array<T>(array, name, 2);
  require_length(array, name, 0, least);
  if (int64_t(array.shape(1)) != columns)
    throw std::invalid_argument(name + " has " + std::to_string(array.shape(1)) + " columns; it must have " +
                                std::to_string(columns));
  return static_cast<T*>(array.data());
}

}  // namespace octavo
