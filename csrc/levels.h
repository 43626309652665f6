// Each kernel file fills its part of the level's table; dispatch.cpp joins the parts.
#pragma once
#include "kernels.h"

#define OCTAVO_DECLARE_LEVEL(level)                  \
  namespace octavo {                                 \
  namespace level {                                  \
  void fill_elementwise(KernelTable* table);         \
  void fill_activations(KernelTable* table);         \
  void fill_linear(KernelTable* table);              \
  void fill_attention(KernelTable* table);           \
  void fill_sampling(KernelTable* table);            \
  void fill_peaks(KernelTable* table);               \
  }                                                  \
  }

OCTAVO_DECLARE_LEVEL(generic)
OCTAVO_DECLARE_LEVEL(avx2)
OCTAVO_DECLARE_LEVEL(avx512)
OCTAVO_DECLARE_LEVEL(avx512_bf16)
