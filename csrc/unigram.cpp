#include "unigram.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace octavo {

namespace {

// What a character that is no piece costs more than the worst piece (kUnkPenalty of google/sentencepiece).
constexpr float kUnknownPenalty = 10.0f;

}  // namespace

Unigram::Unigram(const std::vector<Piece>& pieces, bool space_prefix, bool one_space, Charsmap charsmap)
    : space_prefix_(space_prefix), one_space_(one_space), charsmap_(std::move(charsmap)), words_(pieces), bytes_(pieces) {
  check_pieces(pieces);
  float lowest = std::numeric_limits<float>::max();
  for (size_t i = 0; i < pieces.size(); i++) {
    const Piece& piece = pieces[i];
    if (piece.kind == PieceKind::kNormal) lowest = std::min(lowest, piece.score);
    if (piece.text.empty() || !is_text(piece.kind)) continue;
    float score = piece.kind == PieceKind::kUserDefined ? 0.0f : piece.score;
    entries_.push_back({uint32_t(texts_.size()), uint32_t(piece.text.size()), int32_t(i), score});
    texts_ += piece.text;
  }
  unknown_score_ = lowest - kUnknownPenalty;
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) { return text_of(a) < text_of(b); });
  uint32_t next = 0;
  for (int byte = 0; byte < 256; byte++) {
    begins_[byte] = next;
    while (next < entries_.size() && uint8_t(texts_[entries_[next].begin]) == byte) next++;
  }
  begins_[256] = next;
}

std::string Unigram::escaped(std::string_view text) const {
  std::string result;
  result.reserve(text.size() + text.size() / 2);
  if (one_space_) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    while (text.ends_with(' ')) text.remove_suffix(1);
    if (text.empty()) return result;
  }
  if (space_prefix_) result += kSpace;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] != ' ') result += text[i];
    else if (!one_space_ || text[i - 1] != ' ') result += kSpace;
  }
  return result;
}

std::vector<int32_t> Unigram::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  words_.cut(text,
             [&](std::string_view stretch) { best_path(escaped(charsmap_.normalized(stretch)), ids); },
             [&](int32_t word) { ids.push_back(word); });
  return ids;
}

void Unigram::best_path(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.size() > size_t(std::numeric_limits<int32_t>::max()))
    throw std::invalid_argument("a text of more than 2 GiB can't be encoded");
  struct Best {
    double score = -std::numeric_limits<double>::max();  // of the text up to here
    int32_t id = -1;                                     // of its last piece; -1: unknown
    int32_t begin = 0;                                   // of that piece
  };
  std::vector<Best> best(text.size() + 1);
  best[0].score = 0;
  auto offer = [&](size_t begin, size_t end, int32_t id, float score) {
    double sum = best[begin].score + double(score);
    if (sum > best[end].score) best[end] = {sum, id, int32_t(begin)};
  };
  for (size_t i = 0; i < text.size();) {
    size_t character = std::min(character_bytes(text[i]), text.size() - i);
    bool known = false;
    auto low = entries_.begin() + begins_[uint8_t(text[i])], high = entries_.begin() + begins_[uint8_t(text[i]) + 1];
    for (size_t depth = 1; low != high; depth++) {
      // All of them begin with the `depth` bytes from i on; the one that is no longer comes first.
      for (; low != high && low->size == depth; ++low) {
        offer(i, i + depth, low->id, low->score);
        known |= depth == character;
      }
      if (i + depth >= text.size()) break;
      uint8_t next = uint8_t(text[i + depth]);
      auto byte_at = [&](const Entry& entry) { return uint8_t(texts_[entry.begin + depth]); };
      low = std::partition_point(low, high, [&](const Entry& entry) { return byte_at(entry) < next; });
      high = std::partition_point(low, high, [&](const Entry& entry) { return byte_at(entry) == next; });
    }
    if (!known) offer(i, i + character, -1, unknown_score_);
    i += character;
  }
  std::vector<size_t> ends;
  for (size_t end = text.size(); end; end = size_t(best[end].begin)) ends.push_back(end);
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Best& piece = best[*end];
    if (piece.id >= 0) ids.push_back(piece.id);
    else bytes_.append(text.substr(size_t(piece.begin), *end - size_t(piece.begin)), ids);
  }
}

}  // namespace octavo
