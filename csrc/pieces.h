// SentencePiece's vocabulary: pieces of text with scores, words that are found before anything else, and bytes for what
// is no piece.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// As tokenizer.ggml.token_type has them.
enum class PieceKind : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Piece {
  std::string_view text;  // UTF-8, U+2581 for a space; of a byte "<0x41>"
  float score;
  PieceKind kind;
};

constexpr std::string_view kSpace = "\u2581";

// Whether text can become a piece of that kind. Control pieces are never made from text.
bool is_text(PieceKind kind);
size_t text_bytes(const std::vector<Piece>& pieces);
// Throws std::invalid_argument for a score that is no number, and for more text than 32 bits count.
void check_pieces(const std::vector<Piece>& pieces);
// Bytes of the character that begins with `first`; 1 for what can't begin one.
size_t character_bytes(char first);

// The pieces that stand for bytes.
class PieceBytes {
 public:
  explicit PieceBytes(const std::vector<Piece>& pieces);
  // The ids of the bytes of a text; bytes without a piece are left out.
  void append(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  int32_t ids_[256];
};

// The pieces that users have defined: found before all others, the longest at each place.
class PieceWords {
 public:
  explicit PieceWords(const std::vector<Piece>& pieces);

  // `stretch(text)` for what is between words, never empty; `word(id)` for each word, in order.
  template <typename Stretch, typename Word>
  void cut(std::string_view text, Stretch stretch, Word word) const {
    size_t begin = 0;
    for (size_t i = 0; i < text.size();) {
      const Entry* found = begins_word_[uint8_t(text[i])] ? longest(text.substr(i)) : nullptr;
      if (!found) {
        i++;
        continue;
      }
      if (i > begin) stretch(text.substr(begin, i - begin));
      word(found->id);
      begin = i += found->text.size();
    }
    if (begin < text.size()) stretch(text.substr(begin));
  }

 private:
  struct Entry {
    std::string text;
    int32_t id;
  };
  const Entry* longest(std::string_view text) const;

  std::vector<Entry> words_;  // sorted
  bool begins_word_[256] = {};
};

}  // namespace octavo
