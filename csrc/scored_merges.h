// SentencePiece's byte-pair encoding: of all neighbours that together are a piece, those with the highest score merge
// first (Kudo and Richardson 2018; bpe_model.cc of google/sentencepiece). Scores stand where other vocabularies have a
// list of merges, and equal scores merge from the left, so no list of merges can say the same.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "piece_table.h"

namespace octavo {

// As tokenizer.ggml.token_type has them.
enum class PieceKind : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Piece {
  std::string_view text;  // UTF-8, U+2581 for a space; of a byte "<0x41>"
  float score;
  PieceKind kind;
};

class ScoredMerges {
 public:
  // space_prefix: every stretch of text begins with a space. Throws std::invalid_argument for a score that is no number.
  ScoredMerges(const std::vector<Piece>& pieces, bool space_prefix);

  // Ids of a text. User-defined pieces are found first, the longest at each place; what is between them merges. A
  // character that is no piece becomes its bytes; bytes without a piece are left out. Control pieces are never made.
  std::vector<int32_t> encode(std::string_view text) const;

 private:
  struct Word {
    std::string text;
    int32_t id;
  };
  const Word* longest_word(std::string_view text) const;
  void encode_stretch(std::string_view text, std::vector<int32_t>& ids) const;
  void merge(std::string_view text, std::vector<int32_t>& ids) const;

  bool space_prefix_;
  size_t longest_piece_ = 0;
  PieceTable table_;
  std::vector<float> scores_;  // by id
  std::vector<Word> words_;    // user-defined pieces, sorted
  bool begins_word_[256] = {};
  int32_t byte_ids_[256];
};

}  // namespace octavo
