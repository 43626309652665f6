#include "shared_spans.h"

#include <algorithm>
#include <cstring>

namespace octavo {

void SharedSpans::clear() {
  members_.clear();
  groups_.clear();
}

void SharedSpans::find(const int32_t* block_table, int64_t block_stride, int32_t span_blocks) {
  block_table_ = block_table;
  block_stride_ = block_stride;
  span_blocks_ = span_blocks;
  if (members_.size() > 1) split(0, members_.size(), 0, 0);
}

const int32_t* SharedSpans::blocks(const Member& member, int32_t span) const {
  return block_table_ + member.seq * block_stride_ + int64_t(span) * span_blocks_;
}

bool SharedSpans::same(const Member& a, const Member& b, int32_t span) const {
  return a.whole > span && b.whole > span &&
         std::memcmp(blocks(a, span), blocks(b, span), sizeof(int32_t) * size_t(span_blocks_)) == 0;
}

bool SharedSpans::all_same(size_t begin, size_t end, int32_t span) const {
  for (size_t i = begin + 1; i < end; i++)
    if (!same(members_[begin], members_[i], span)) return false;
  return true;
}

// Members [begin, end) agree in all spans before `span`, and nobody else has those from `first` on.
void SharedSpans::split(size_t begin, size_t end, int32_t first, int32_t span) {
  while (all_same(begin, end, span)) span++;
  if (span > first) {
    groups_.push_back({begin, end, first, span});
    for (size_t i = begin; i < end; i++) members_[i].shared = span;
  }
  std::sort(members_.begin() + int64_t(begin), members_.begin() + int64_t(end), [&](const Member& a, const Member& b) {
    if ((a.whole > span) != (b.whole > span)) return a.whole > span;
    if (a.whole <= span) return a.seq < b.seq;
    int order = std::memcmp(blocks(a, span), blocks(b, span), sizeof(int32_t) * size_t(span_blocks_));
    return order ? order < 0 : a.seq < b.seq;
  });
  for (size_t run = begin, next; run < end; run = next) {
    for (next = run + 1; next < end && same(members_[run], members_[next], span);) next++;
    if (next - run > 1) split(run, next, span, span + 1);
  }
}

}  // namespace octavo
