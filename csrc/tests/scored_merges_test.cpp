// SentencePiece's merges against the rule spelled out: look at all pairs, merge the best, start again.
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "scored_merges.h"

namespace {

using namespace octavo;
using Kind = PieceKind;

struct Lcg {
  uint64_t state;
  uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return uint32_t((state >> 33) % limit);
  }
};

// Pieces of one to four letters of a small alphabet; few scores, so that many are equal.
std::vector<std::string> random_texts(Lcg& random) {
  std::map<std::string, bool> texts;
  for (char letter = 'a'; letter < 'd'; letter++) texts[std::string(1, letter)] = true;
  for (int i = 0; i < 40; i++) {
    std::string text;
    for (uint32_t length = 1 + random.below(4); length; length--) text += char('a' + random.below(4));
    texts[text] = true;
  }
  std::vector<std::string> result;
  for (auto& [text, _] : texts) result.push_back(text);
  return result;
}

std::vector<int32_t> spelled_out(const std::vector<Piece>& pieces, const std::string& text) {
  std::map<std::string, int32_t> ids;
  for (size_t i = 0; i < pieces.size(); i++) ids[std::string(pieces[i].text)] = int32_t(i);
  std::vector<std::string> parts;
  for (char letter : text) parts.push_back(std::string(1, letter));
  while (true) {
    int best = -1;
    float score = 0;
    for (int i = 0; i + 1 < int(parts.size()); i++) {
      auto found = ids.find(parts[size_t(i)] + parts[size_t(i) + 1]);
      if (found != ids.end() && (best < 0 || pieces[size_t(found->second)].score > score)) {
        best = i;
        score = pieces[size_t(found->second)].score;
      }
    }
    if (best < 0) break;
    parts[size_t(best)] += parts[size_t(best) + 1];
    parts.erase(parts.begin() + best + 1);
  }
  std::vector<int32_t> result;
  for (const std::string& part : parts)
    if (ids.count(part)) result.push_back(ids[part]);
  return result;
}

void random_vocabularies() {
  Lcg random{1};
  for (int round = 0; round < 300; round++) {
    std::vector<std::string> texts = random_texts(random);
    std::vector<Piece> pieces;
    for (const std::string& text : texts) pieces.push_back({text, -float(random.below(8)), Kind::kNormal});
    ScoredMerges merges(pieces, false);
    for (int i = 0; i < 20; i++) {
      std::string text;
      for (uint32_t length = random.below(30); length; length--) text += char('a' + random.below(4));
      CHECK(merges.encode(text) == spelled_out(pieces, text));
    }
  }
}

void words_bytes_and_spaces() {
  std::vector<Piece> pieces{{"<s>", 0, Kind::kControl},       {"\u2581", 0, Kind::kNormal}, {"\u2581s", 1, Kind::kNormal},
                            {"s", 0, Kind::kNormal},          {"\n", 0, Kind::kUserDefined}, {"\n\n", 0, Kind::kUserDefined},
                            {"<h1>", 0, Kind::kUserDefined},  {"<0xC3>", 0, Kind::kByte},    {"<0xa9>", 0, Kind::kByte},
                            {"<", 0, Kind::kNormal},          {">", 0, Kind::kNormal},       {"<s", 5, Kind::kNormal},
                            {"<0", 1, Kind::kNormal}};
  using Ids = std::vector<int32_t>;
  ScoredMerges plain(pieces, false);
  CHECK(plain.encode("").empty());
  CHECK(plain.encode(" s") == Ids({2}));
  CHECK((plain.encode("s\n\n\ns<h1>") == Ids{3, 5, 4, 3, 6}));
  CHECK((plain.encode("<s>") == Ids{11, 10}));       // control pieces are never made
  CHECK((plain.encode("\u00e9") == Ids{7, 8}));      // no piece: bytes
  CHECK((plain.encode("\u00e8s") == Ids{7, 3}));     // a byte without a piece is left out
  CHECK((plain.encode("<h") == Ids{9}));
  CHECK((plain.encode("\xff\xc3") == Ids{7}));       // no UTF-8, and cut off
  ScoredMerges prefixed(pieces, true);
  CHECK((prefixed.encode("s\ns") == Ids{2, 4, 2}));  // each stretch
  CHECK(prefixed.encode("").empty());
}

void long_texts() {
  std::vector<Piece> pieces{{"a", 0, Kind::kNormal}, {"aa", 1, Kind::kNormal}, {"aaaa", 2, Kind::kNormal}};
  ScoredMerges merges(pieces, false);
  CHECK(merges.encode(std::string(1 << 18, 'a')) == std::vector<int32_t>(1 << 16, 2));
}

void bad_scores() {
  std::vector<Piece> pieces{{"a", std::numeric_limits<float>::quiet_NaN(), Kind::kNormal}};
  bool refused = false;
  try {
    ScoredMerges merges(pieces, false);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  random_vocabularies();
  words_bytes_and_spaces();
  long_texts();
  bad_scores();
}
