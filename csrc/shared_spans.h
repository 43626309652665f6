// Which sequences of a step have the same pages, span by span from the start: those pages are then read once for all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

class SharedSpans {
 public:
  // A sequence, how many spans from the start all its queries see whole, and (after `find`) how many of those somebody
  // else has too.
  struct Member {
    int32_t seq, whole, shared;
  };
  // Members [begin, end) have the same pages in spans [span_begin, span_end).
  struct Group {
    size_t begin, end;
    int32_t span_begin, span_end;
  };

  void clear();
  void add(int32_t seq, int32_t whole) { members_.push_back({seq, whole, 0}); }
  // block_table [S][block_stride], of which a span takes `span_blocks`. Each member's shared spans are covered by one
  // group each, in any order. Takes time in proportion to members and the spans that they share.
  void find(const int32_t* block_table, int64_t block_stride, int32_t span_blocks);

  const std::vector<Member>& members() const { return members_; }
  const std::vector<Group>& groups() const { return groups_; }

 private:
  const int32_t* blocks(const Member& member, int32_t span) const;
  bool same(const Member& a, const Member& b, int32_t span) const;
  bool all_same(size_t begin, size_t end, int32_t span) const;
  void split(size_t begin, size_t end, int32_t first, int32_t span);

  const int32_t* block_table_ = nullptr;
  int64_t block_stride_ = 0;
  int32_t span_blocks_ = 0;
  std::vector<Member> members_;
  std::vector<Group> groups_;
};

}  // namespace octavo
