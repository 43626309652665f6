#include "pieces.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace octavo {

namespace {

// The value of "<0x41>", or -1.
int byte_value(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  int value = 0;
  for (char digit : text.substr(3, 2)) {
    if (digit >= '0' && digit <= '9') value = value * 16 + (digit - '0');
    else if (digit >= 'A' && digit <= 'F') value = value * 16 + (digit - 'A' + 10);
    else if (digit >= 'a' && digit <= 'f') value = value * 16 + (digit - 'a' + 10);
    else return -1;
  }
  return value;
}

}  // namespace

bool is_text(PieceKind kind) {
  return kind == PieceKind::kNormal || kind == PieceKind::kUserDefined || kind == PieceKind::kUnused;
}

size_t text_bytes(const std::vector<Piece>& pieces) {
  size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.text.size();
  return bytes;
}

void check_pieces(const std::vector<Piece>& pieces) {
  if (text_bytes(pieces) > std::numeric_limits<uint32_t>::max())
    throw std::invalid_argument("the pieces have more than 4 GiB of text");
  for (size_t i = 0; i < pieces.size(); i++)
    if (!std::isfinite(pieces[i].score))
      throw std::invalid_argument("piece " + std::to_string(i) + " has a score that is no number");
}

size_t character_bytes(char first) {
  int ones = std::countl_one(uint8_t(first));
  return ones >= 2 && ones <= 4 ? size_t(ones) : 1;
}

PieceBytes::PieceBytes(const std::vector<Piece>& pieces) {
  std::fill(std::begin(ids_), std::end(ids_), -1);
  for (size_t i = 0; i < pieces.size(); i++) {
    if (pieces[i].kind != PieceKind::kByte) continue;
    if (int value = byte_value(pieces[i].text); value >= 0) ids_[value] = int32_t(i);
  }
}

void PieceBytes::append(std::string_view text, std::vector<int32_t>& ids) const {
  for (char byte : text)
    if (int32_t id = ids_[uint8_t(byte)]; id >= 0) ids.push_back(id);
}

PieceWords::PieceWords(const std::vector<Piece>& pieces) {
  for (size_t i = 0; i < pieces.size(); i++) {
    if (pieces[i].kind != PieceKind::kUserDefined || pieces[i].text.empty()) continue;
    words_.push_back({std::string(pieces[i].text), int32_t(i)});
    begins_word_[uint8_t(pieces[i].text[0])] = true;
  }
  std::sort(words_.begin(), words_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
}

const PieceWords::Entry* PieceWords::longest(std::string_view text) const {
  const Entry* best = nullptr;
  auto low = words_.begin(), high = words_.end();
  for (size_t depth = 0; depth < text.size(); depth++) {
    // Those with this character next: all of them are longer than `depth`, and sorted by it.
    low = std::partition_point(low, high, [&](const Entry& word) { return uint8_t(word.text[depth]) < uint8_t(text[depth]); });
    high = std::partition_point(low, high, [&](const Entry& word) { return word.text[depth] == text[depth]; });
    if (low == high) break;
    if (low->text.size() == depth + 1) {
      best = &*low;
      while (low != high && low->text.size() == depth + 1) ++low;
    }
  }
  return best;
}

}  // namespace octavo
