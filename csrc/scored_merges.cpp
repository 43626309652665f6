#include "scored_merges.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>

namespace octavo {

ScoredMerges::ScoredMerges(const std::vector<Piece>& pieces, bool space_prefix)
    : space_prefix_(space_prefix), table_(pieces.size(), text_bytes(pieces)), scores_(pieces.size()), words_(pieces),
      bytes_(pieces) {
  check_pieces(pieces);
  for (size_t i = 0; i < pieces.size(); i++) {
    scores_[i] = pieces[i].score;
    if (pieces[i].text.empty() || !is_text(pieces[i].kind)) continue;
    table_.add(pieces[i].text, int32_t(i));
    longest_piece_ = std::max(longest_piece_, pieces[i].text.size());
  }
}

std::vector<int32_t> ScoredMerges::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  words_.cut(
      text,
      [&](std::string_view stretch) {
        std::string escaped;
        escaped.reserve(stretch.size() + stretch.size() / 2);
        if (space_prefix_) escaped += kSpace;
        for (char byte : stretch) {
          if (byte == ' ') escaped += kSpace;
          else escaped += byte;
        }
        merge(escaped, ids);
      },
      [&](int32_t word) { ids.push_back(word); });
  return ids;
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
    } else {
      bytes_.append(piece, ids);
    }
  }
}

}  // namespace octavo
