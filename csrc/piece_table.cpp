#include "piece_table.h"

#include <algorithm>
#include <bit>
#include <random>

namespace octavo {

PieceTable::PieceTable(size_t count, size_t bytes) : entries_(std::bit_ceil(std::max<size_t>(2 * count, 16))) {
  std::random_device random;
  key_ = (uint64_t(random()) << 32 | random()) | 1;
  texts_.reserve(bytes);
}

uint64_t PieceTable::hash(std::string_view text) const {
  uint64_t state = key_ ^ text.size();
  for (char byte : text) {
    state = (state ^ uint8_t(byte)) * 0x9e3779b97f4a7c15ULL;
    state ^= state >> 29;
  }
  return state * key_;
}

size_t PieceTable::place(std::string_view text, uint64_t hash) const {
  size_t mask = entries_.size() - 1;
  for (size_t i = size_t(hash >> 20) & mask;; i = (i + 1) & mask) {
    const Entry& entry = entries_[i];
    if (entry.id < 0) return i;
    if (entry.hash == hash && std::string_view(texts_).substr(entry.begin, entry.size) == text) return i;
  }
}

void PieceTable::add(std::string_view text, int32_t id) {
  uint64_t hash_value = hash(text);
  Entry& entry = entries_[place(text, hash_value)];
  if (entry.id < 0) {
    entry = {hash_value, uint32_t(texts_.size()), uint32_t(text.size()), id};
    texts_ += text;
  }
  entry.id = id;
}

int32_t PieceTable::find(std::string_view text) const { return entries_[place(text, hash(text))].id; }

}  // namespace octavo
