// SentencePiece's normalisation of texts: a map from short texts to their replacements, as files keep it
// (precompiled_charsmap; Normalizer::DecodePrecompiledCharsMap and NormalizePrefix in normalizer.cc of
// google/sentencepiece). Keys lie in a double-array trie (Yata et al. 2007; darts.h of s-yata/darts-clone).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

class Charsmap {
 public:
  Charsmap() = default;  // leaves texts as they are
  // stored: u32 size of the trie in bytes, the trie's units (u32), replacements that end in NUL; all little-endian.
  // Throws std::invalid_argument for what is none.
  explicit Charsmap(std::string_view stored);

  bool empty() const { return units_.empty(); }
  // At each place the longest key there is replaced; a character that begins none stays.
  std::string normalized(std::string_view text) const;

 private:
  struct Match {
    size_t bytes;          // 0: no key begins here
    uint32_t replacement;  // where it begins
  };
  Match longest(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace octavo
