// SentencePiece's byte-pair encoding: of all neighbours that together are a piece, those with the highest score merge
// first (Kudo and Richardson 2018; bpe_model.cc of google/sentencepiece). Scores stand where other vocabularies have a
// list of merges, and equal scores merge from the left, so no list of merges can say the same.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "piece_table.h"
#include "pieces.h"

namespace octavo {

class ScoredMerges {
 public:
  // space_prefix: every stretch of text begins with a space. Throws std::invalid_argument for a score that is no number.
  ScoredMerges(const std::vector<Piece>& pieces, bool space_prefix);

  // Ids of a text. User-defined pieces are found first, the longest at each place; what is between them merges. A
  // character that is no piece becomes its bytes; bytes without a piece are left out. Control pieces are never made.
  std::vector<int32_t> encode(std::string_view text) const;

 private:
  void merge(std::string_view text, std::vector<int32_t>& ids) const;

  bool space_prefix_;
  size_t longest_piece_ = 0;
  PieceTable table_;
  std::vector<float> scores_;  // by id
  PieceWords words_;
  PieceBytes bytes_;
};

}  // namespace octavo
