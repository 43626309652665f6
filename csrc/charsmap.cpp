#include "charsmap.h"

#include <algorithm>
#include <stdexcept>

#include "pieces.h"

namespace octavo {

namespace {

// Limits that no real map comes near (the longest of Unicode's compatibility forms have 33 bytes), so that a hostile one
// can't make a text much longer, or search it again and again.
constexpr size_t kLongestReplacement = 256, kLongestKey = 256;

uint32_t read_u32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; i++) value |= uint32_t(uint8_t(bytes[i])) << (8 * i);
  return value;
}

// What a unit of the trie says.
bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view stored) {
  if (stored.size() < 4) throw std::invalid_argument("the precompiled charsmap has less than 4 bytes");
  size_t trie_bytes = read_u32(stored);
  stored.remove_prefix(4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > stored.size())
    throw std::invalid_argument("the precompiled charsmap says that its trie has " + std::to_string(trie_bytes) +
                                " bytes, of " + std::to_string(stored.size()));
  units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < units_.size(); i++) units_[i] = read_u32(stored.substr(4 * i));
  replacements_ = stored.substr(trie_bytes);
  for (size_t begin = 0; begin < replacements_.size();) {
    size_t end = replacements_.find('\0', begin);
    if (end == std::string::npos) throw std::invalid_argument("the precompiled charsmap's last replacement has no end");
    if (end - begin > kLongestReplacement)
      throw std::invalid_argument("the precompiled charsmap has a replacement of " + std::to_string(end - begin) +
                                  " bytes; the limit is " + std::to_string(kLongestReplacement));
    begin = end + 1;
  }
}

Charsmap::Match Charsmap::longest(std::string_view text) const {
  Match found{0, 0};
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < std::min(text.size(), kLongestKey); i++) {
    uint8_t byte = uint8_t(text[i]);
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) break;
    bool ends = has_leaf(units_[node]);
    node ^= offset(units_[node]);
    if (ends && node < units_.size()) found = {i + 1, value(units_[node])};
  }
  return found;
}

std::string Charsmap::normalized(std::string_view text) const {
  if (empty()) return std::string(text);
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  while (!text.empty()) {
    Match match = longest(text);
    size_t bytes = match.bytes;
    if (bytes && match.replacement < replacements_.size()) {
      result += replacements_.c_str() + match.replacement;
    } else {
      bytes = std::min(character_bytes(text[0]), text.size());
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace octavo
