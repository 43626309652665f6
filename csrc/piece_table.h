// The texts of a vocabulary's pieces, to be found again.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// Text -> id, by open addressing. Texts are copied.
class PieceTable {
 public:
  PieceTable(size_t count, size_t bytes);
  // A text that is there already gets the new id.
  void add(std::string_view text, int32_t id);
  int32_t find(std::string_view text) const;  // -1: not there

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t begin = 0, size = 0;
    int32_t id = -1;
  };
  uint64_t hash(std::string_view text) const;
  // Where the text is, or where it would go.
  size_t place(std::string_view text, uint64_t hash) const;

  uint64_t key_;  // a file can't know it, and so can't make all its texts collide
  std::string texts_;
  std::vector<Entry> entries_;  // a power of two, at most half of them taken
};

}  // namespace octavo
