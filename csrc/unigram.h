// SentencePiece's unigram model: of all ways to cut a text into pieces, the one whose scores (log probabilities) have
// the highest sum, found by Viterbi's algorithm (Kudo 2018; unigram_model.cc of google/sentencepiece).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "charsmap.h"
#include "pieces.h"

namespace octavo {

class Unigram {
 public:
  // space_prefix: every stretch of text begins with a space. one_space: spaces at its ends are left out, and of several
  // in a row all but one. charsmap: normalises what is between user-defined pieces before that. Throws
  // std::invalid_argument as check_pieces does.
  Unigram(const std::vector<Piece>& pieces, bool space_prefix, bool one_space, Charsmap charsmap = {});

  // Ids of a text. User-defined pieces are found first, the longest at each place. A character that is no piece becomes
  // its bytes; bytes without a piece are left out.
  std::vector<int32_t> encode(std::string_view text) const;

 private:
  struct Entry {
    uint32_t begin, size;
    int32_t id;
    float score;
  };
  std::string_view text_of(const Entry& entry) const { return std::string_view(texts_).substr(entry.begin, entry.size); }
  std::string escaped(std::string_view text) const;
  void best_path(std::string_view text, std::vector<int32_t>& ids) const;

  bool space_prefix_, one_space_;
  Charsmap charsmap_;
  std::string texts_;
  std::vector<Entry> entries_;  // sorted by their texts
  uint32_t begins_[257];        // entries whose first byte is less
  float unknown_score_;
  PieceWords words_;
  PieceBytes bytes_;
};

}  // namespace octavo
