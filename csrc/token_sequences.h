// Short sequences of token ids that are looked for at the end of a growing one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace octavo {

// The first `length` ids of `sequence` are the last ones of `history`.
inline bool ends_with(const std::vector<int32_t>& history, const std::vector<int32_t>& sequence, size_t length) {
  return length <= history.size() && std::equal(sequence.begin(), sequence.begin() + std::ptrdiff_t(length),
                                                history.end() - std::ptrdiff_t(length));
}

struct TokenSequences {
  std::vector<int32_t> singles;              // sequences of one token
  std::vector<std::vector<int32_t>> longer;  // of at least two

  bool empty() const { return singles.empty() && longer.empty(); }
};

}  // namespace octavo
