// The unigram model against the rule spelled out: try all ways to cut a text, take the one with the highest sum.
#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "unigram.h"

namespace {

using namespace octavo;
using Kind = PieceKind;
using Ids = std::vector<int32_t>;

struct Lcg {
  uint64_t state;
  uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return uint32_t((state >> 33) % limit);
  }
};

struct Way {
  double score = -std::numeric_limits<double>::infinity();
  Ids ids;
};

// Ids of unknown letters are left out.
Way best_way(const std::vector<Piece>& pieces, float unknown, const std::string& text) {
  if (text.empty()) return {0, {}};
  Way best;
  bool known = false;
  auto offer = [&](size_t length, int32_t id, float score) {
    Way rest = best_way(pieces, unknown, text.substr(length));
    if (score + rest.score <= best.score) return;
    best = {score + rest.score, {}};
    if (id >= 0) best.ids.push_back(id);
    best.ids.insert(best.ids.end(), rest.ids.begin(), rest.ids.end());
  };
  for (size_t i = 0; i < pieces.size(); i++) {
    if (!text.starts_with(pieces[i].text)) continue;
    known |= pieces[i].text.size() == 1;
    offer(pieces[i].text.size(), int32_t(i), pieces[i].score);
  }
  if (!known) offer(1, -1, unknown);
  return best;
}

void random_vocabularies() {
  Lcg random{1};
  for (int round = 0; round < 200; round++) {
    std::map<std::string, float> texts;
    for (int i = 0; i < 12; i++) {
      std::string text;
      for (uint32_t length = 1 + random.below(4); length; length--) text += char('a' + random.below(3));
      texts[text] = -float(random.below(1u << 20)) / float(1 << 18);  // sums have no ties to speak of
    }
    std::vector<Piece> pieces;
    float lowest = 0;
    for (auto& [text, score] : texts) {
      pieces.push_back({text, score, Kind::kNormal});
      lowest = std::min(lowest, score);
    }
    Unigram model(pieces, false, false);
    for (int i = 0; i < 10; i++) {
      std::string text;
      for (uint32_t length = random.below(10); length; length--) text += char('a' + random.below(4));
      CHECK(model.encode(text) == best_way(pieces, lowest - 10, text).ids);
    }
  }
}

void words_bytes_and_spaces() {
  std::vector<Piece> pieces{{"<s>", 0, Kind::kControl},      {"\u2581", -3, Kind::kNormal}, {"\u2581s", -1, Kind::kNormal},
                            {"s", -2, Kind::kNormal},        {"\n\n", 0, Kind::kUserDefined}, {"<0xC3>", 0, Kind::kByte},
                            {"<0xA9>", 0, Kind::kByte},      {"<", -2, Kind::kNormal},         {">", -2, Kind::kNormal}};
  Unigram plain(pieces, false, false);
  CHECK(plain.encode("").empty());
  CHECK((plain.encode("  s") == Ids{1, 2}));
  CHECK((plain.encode("s\n\ns") == Ids{3, 4, 3}));
  CHECK((plain.encode("<s>") == Ids{7, 3, 8}));  // control pieces are never made
  CHECK((plain.encode("\u00e9s") == Ids{5, 6, 3}));
  CHECK((plain.encode("\xc3") == Ids{5}));       // cut off
  Unigram prefixed(pieces, true, false), single(pieces, true, true);
  CHECK((prefixed.encode(" s") == Ids{1, 2}));
  CHECK((single.encode("  s   s ") == Ids{2, 2}));
  CHECK(single.encode("  ").empty());
}

void long_texts() {
  std::vector<Piece> pieces{{"a", -1, Kind::kNormal}, {"aaaa", -2, Kind::kNormal}};
  CHECK(Unigram(pieces, false, false).encode(std::string(1 << 18, 'a')) == Ids(1 << 16, 1));
}

}  // namespace

int main() {
  random_vocabularies();
  words_bytes_and_spaces();
  long_texts();
}
