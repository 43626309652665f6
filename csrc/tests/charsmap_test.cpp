// Normalisation against a map written out: at each place the longest key counts. What is no map is refused.
#include "charsmap.h"

#include <map>
#include <stdexcept>
#include <string>

#include "check.h"

namespace {

using namespace octavo;

std::string u32(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; i++) bytes += char(value >> (8 * i) & 255);
  return bytes;
}

// A double array that keeps each node's children in a block of 256 units of its own: large, but plain.
struct Trie {
  std::vector<uint32_t> units{0};

  static uint32_t with_offset(uint32_t unit, size_t node, size_t block) {
    uint32_t offset = uint32_t(node ^ block);
    return unit | (offset < 1u << 21 ? offset << 10 : offset >> 8 << 10 | 1u << 9);
  }
  // Keys are sorted, and share their first `depth` bytes.
  void fill(size_t node, const std::map<std::string, uint32_t>& keys, size_t depth) {
    size_t block = (units.size() + 255) / 256 * 256;
    units.resize(block + 256);
    units[node] = with_offset(units[node], node, block);
    std::map<uint8_t, std::map<std::string, uint32_t>> children;
    for (auto& [key, value] : keys) {
      if (key.size() == depth) {
        units[node] |= 1u << 8;
        units[block] = value | 1u << 31;
      } else {
        children[uint8_t(key[depth])][key] = value;
      }
    }
    for (auto& [byte, below] : children) {
      units[block ^ byte] = byte;
      fill(block ^ byte, below, depth + 1);
    }
  }
};

std::string stored(const std::map<std::string, std::string>& map) {
  std::string replacements;
  std::map<std::string, uint32_t> places;
  for (auto& [key, replacement] : map) {
    places[key] = uint32_t(replacements.size());
    replacements += replacement + '\0';
  }
  Trie trie;
  trie.fill(0, places, 0);
  std::string bytes = u32(uint32_t(4 * trie.units.size()));
  for (uint32_t unit : trie.units) bytes += u32(unit);
  return bytes + replacements;
}

void the_longest_key_counts() {
  Charsmap map(stored({{"a", "1"}, {"ab", "2"}, {"abcd", "3"}, {"\u00e9", "e"}, {"x", ""}, {"\u3000", " "}}));
  CHECK(map.normalized("") == "");
  CHECK(map.normalized("aab") == "12");
  CHECK(map.normalized("abcab") == "2c2");
  CHECK(map.normalized("abcd") == "3");
  CHECK(map.normalized("caf\u00e9\u3000x!") == "c1fe !");
  CHECK(map.normalized("\u00e8\u00e9") == "\u00e8" "e");  // they share their first byte
  CHECK(map.normalized("\xc3") == "\xc3");                 // cut off
  CHECK(Charsmap().normalized("ab") == "ab");
}

void what_is_no_map_is_refused() {
  std::string good = stored({{"a", "1"}});
  auto refused = [](const std::string& bytes) {
    try {
      Charsmap map(bytes);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(!refused(good));
  CHECK(refused(""));
  CHECK(refused(good.substr(0, 3)));
  CHECK(refused(good.substr(0, 40)));
  CHECK(refused(good.substr(0, good.size() - 1)));      // no end
  CHECK(refused(u32(6) + "abcdefgh"));                  // half a unit
  CHECK(refused(u32(0) + std::string(1, '\0')));        // no root
  CHECK(refused(good + std::string(300, 'x') + '\0'));  // too long
}

// Whatever the units say, nothing outside is read and every search ends.
void random_units() {
  uint64_t state = 1;
  auto random = [&] { return uint32_t((state = state * 6364136223846793005ULL + 1442695040888963407ULL) >> 33); };
  for (int round = 0; round < 300; round++) {
    std::string bytes = u32(4 * 64);
    for (int i = 0; i < 64; i++) bytes += u32(random() % 2 ? random() : random() % 128 | random() % 64 << 10 | 256);
    Charsmap map(bytes + std::string("ab\0c\0", 5));
    std::string text;
    for (int i = 0; i < 200; i++) text += char(random() % 128);
    CHECK(map.normalized(text).size() <= 2 * text.size());
  }
}

}  // namespace

int main() {
  the_longest_key_counts();
  what_is_no_map_is_refused();
  random_units();
}
