#include "scored_merges.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <queue>
#include <stdexcept>

namespace octavo {

namespace {

constexpr std::string_view kSpace = "\u2581";

// Bytes of the character that begins with `first`; 1 for what can't begin one.
size_t character_bytes(char first) {
  int ones = std::countl_one(uint8_t(first));
  return ones >= 2 && ones <= 4 ? size_t(ones) : 1;
}

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

bool merges(PieceKind kind) {
  return kind == PieceKind::kNormal || kind == PieceKind::kUserDefined || kind == PieceKind::kUnused;
}

size_t bytes_of(const std::vector<Piece>& pieces) {
  size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.text.size();
  return bytes;
}

}  // namespace

ScoredMerges::ScoredMerges(const std::vector<Piece>& pieces, bool space_prefix)
    : space_prefix_(space_prefix), table_(pieces.size(), bytes_of(pieces)), scores_(pieces.size()) {
  if (bytes_of(pieces) > std::numeric_limits<uint32_t>::max())
    throw std::invalid_argument("the pieces have more than 4 GiB of text");
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (size_t i = 0; i < pieces.size(); i++) {
    const Piece& piece = pieces[i];
    if (!std::isfinite(piece.score))
      throw std::invalid_argument("piece " + std::to_string(i) + " has a score that is no number");
    scores_[i] = piece.score;
    if (piece.text.empty()) continue;
    if (piece.kind == PieceKind::kByte) {
      if (int value = byte_value(piece.text); value >= 0) byte_ids_[value] = int32_t(i);
    }
    if (!merges(piece.kind)) continue;
    table_.add(piece.text, int32_t(i));
    longest_piece_ = std::max(longest_piece_, piece.text.size());
    if (piece.kind == PieceKind::kUserDefined) {
      words_.push_back({std::string(piece.text), int32_t(i)});
      begins_word_[uint8_t(piece.text[0])] = true;
    }
  }
  std::sort(words_.begin(), words_.end(), [](const Word& a, const Word& b) { return a.text < b.text; });
}

const ScoredMerges::Word* ScoredMerges::longest_word(std::string_view text) const {
  const Word* best = nullptr;
  auto low = words_.begin(), high = words_.end();
  for (size_t depth = 0; depth < text.size(); depth++) {
    // Those with this character next: all of them are longer than `depth`, and sorted by it.
    low = std::partition_point(low, high, [&](const Word& word) { return uint8_t(word.text[depth]) < uint8_t(text[depth]); });
    high = std::partition_point(low, high, [&](const Word& word) { return word.text[depth] == text[depth]; });
    if (low == high) break;
    if (low->text.size() == depth + 1) {
      best = &*low;
      while (low != high && low->text.size() == depth + 1) ++low;
    }
  }
  return best;
}

std::vector<int32_t> ScoredMerges::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Word* word = begins_word_[uint8_t(text[i])] ? longest_word(text.substr(i)) : nullptr;
    if (!word) {
      i++;
      continue;
    }
    encode_stretch(text.substr(begin, i - begin), ids);
    ids.push_back(word->id);
    begin = i += word->text.size();
  }
  encode_stretch(text.substr(begin), ids);
  return ids;
}

void ScoredMerges::encode_stretch(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2);
  if (space_prefix_) escaped += kSpace;
  for (char byte : text) {
    if (byte == ' ') escaped += kSpace;
    else escaped += byte;
  }
  merge(escaped, ids);
}

void ScoredMerges::merge(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.size() > size_t(std::numeric_limits<int32_t>::max()))
    throw std::invalid_argument("a text of more than 2 GiB can't be encoded");
  struct Symbol {
    int32_t previous, next;
    int32_t begin, size;  // size 0: merged into the one before
  };
  struct Pair {
    float score;
    int32_t left, right, size;
    bool operator<(const Pair& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < text.size();) {
    size_t size = std::min(character_bytes(text[i]), text.size() - i);
    int32_t index = int32_t(symbols.size());
    symbols.push_back({index - 1, index + 1, int32_t(i), int32_t(size)});
    i += size;
  }
  symbols.back().next = -1;

  std::priority_queue<Pair> pairs;
  auto offer = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    int32_t size = symbols[size_t(left)].size + symbols[size_t(right)].size;
    if (size_t(size) > longest_piece_) return;
    int32_t id = table_.find(text.substr(size_t(symbols[size_t(left)].begin), size_t(size)));
    if (id >= 0) pairs.push({scores_[size_t(id)], left, right, size});
  };
  for (size_t i = 1; i < symbols.size(); i++) offer(int32_t(i - 1), int32_t(i));
  while (!pairs.empty()) {
    Pair pair = pairs.top();
    pairs.pop();
    Symbol &left = symbols[size_t(pair.left)], &right = symbols[size_t(pair.right)];
    if (!left.size || !right.size || left.size + right.size != pair.size) continue;  // one of them has merged since
    left.size = pair.size;
    right.size = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[size_t(right.next)].previous = pair.left;
    offer(left.previous, pair.left);
    offer(pair.left, left.next);
  }

  for (int32_t i = 0; i >= 0; i = symbols[size_t(i)].next) {
    std::string_view piece = text.substr(size_t(symbols[size_t(i)].begin), size_t(symbols[size_t(i)].size));
    if (int32_t id = table_.find(piece); id >= 0) {
      ids.push_back(id);
      continue;
    }
    for (char byte : piece)
      if (int32_t id = byte_ids_[uint8_t(byte)]; id >= 0) ids.push_back(id);
  }
}

}  // namespace octavo
