#include "step.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace octavo {
namespace {

std::string entry(const char* array, int64_t index, int64_t value) {
  return std::string(array) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

void require(bool holds, const std::string& what, const std::string& limit) {
  if (!holds) throw std::invalid_argument(what + "; " + limit);
}

void check_range(const char* array, const int32_t* values, int64_t count, int64_t low, int64_t high) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] < low || values[i] > high)
      throw std::invalid_argument(entry(array, i, values[i]) + "; it must be from " + std::to_string(low) + " to " +
                                  std::to_string(high));
}

void check_size(const char* name, int64_t value, int64_t most) {
  require(value >= 0 && value <= most, std::string(name) + " is " + std::to_string(value),
          "it must be from 0 to " + std::to_string(most));
}

// Every block of sequence `s` that its tokens in this step see or write is a page of the pool. Returns the highest page.
int32_t check_blocks(const Step& step, const PlanLimits& limits, int32_t group, int32_t window, int32_t s) {
  int32_t context = step.context_len[s], first = context - (step.query_start[s + 1] - step.query_start[s]);
  const int32_t* blocks = step.blocks_of(group) + s * step.block_stride;
  int32_t highest = -1;
  for (int32_t b = window ? std::max(0, first + 1 - window) / limits.page_size : 0;
       b * int64_t(limits.page_size) < context; b++) {
    if (blocks[b] < 0 || blocks[b] >= limits.num_pages)
      throw std::invalid_argument("block_table of KV group " + std::to_string(group) + ", sequence " +
                                  std::to_string(s) + ", block " + std::to_string(b) + ", is page " +
                                  std::to_string(blocks[b]) + "; pages are 0 to " +
                                  std::to_string(limits.num_pages - 1));
    highest = std::max(highest, blocks[b]);
  }
  return highest;
}

// Sequence `s`: its tokens are rows query_start[s] .. query_start[s + 1] - 1, and they stand at the last positions of its
// context.
void check_sequence(const Step& step, const PlanLimits& limits, int32_t s) {
  int32_t begin = step.query_start[s], end = step.query_start[s + 1], context = step.context_len[s];
  require(begin < end && end <= step.tokens_count, entry("query_start", s + 1, end),
          "it must be above the entry before, " + std::to_string(begin) + ", and at most num_tokens, " +
              std::to_string(step.tokens_count));
  int64_t most = std::min<int64_t>(limits.max_blocks, step.block_stride) * limits.page_size;
  require(context >= end - begin && context <= most, entry("context_len", s, context),
          "it must be from the sequence's tokens in this step, " + std::to_string(end - begin) + ", to " +
              std::to_string(most));
  for (int32_t t = begin; t < end; t++) {
    int32_t position = context - (end - t);
    require(step.token_seq[t] == s, entry("token_seq", t, step.token_seq[t]),
            "query_start gives row " + std::to_string(t) + " to sequence " + std::to_string(s));
    require(step.positions[t] == position, entry("positions", t, step.positions[t]),
            "by context_len it must be " + std::to_string(position));
  }
}

}  // namespace

void check_sizes(const Step& step, const PlanLimits& limits) {
  check_size("num_tokens", step.tokens_count, limits.max_tokens);
  check_size("num_seqs", step.seqs, limits.max_seqs);
  check_size("num_outputs", step.outputs, std::max(limits.max_tokens, limits.max_seqs));
}

int32_t check_step(const Step& step, const PlanLimits& limits, const std::vector<int32_t>& windows,
                   const Sampler& sampler) {
  check_sizes(step, limits);
  check_range("tokens", step.tokens, step.tokens_count, 0, limits.vocab - 1);
  require(step.query_start[0] == 0, entry("query_start", 0, step.query_start[0]), "it must be 0");
  int32_t highest = -1;
  for (int32_t s = 0; s < step.seqs; s++) {
    check_sequence(step, limits, s);
    for (size_t group = 0; group < windows.size(); group++)
      highest = std::max(highest, check_blocks(step, limits, int32_t(group), windows[group], s));
  }
  require(step.query_start[step.seqs] == step.tokens_count, entry("query_start", step.seqs, step.query_start[step.seqs]),
          "the last entry must be num_tokens, " + std::to_string(step.tokens_count));
  check_range("output_rows", step.output_rows, step.outputs, 0, step.tokens_count - 1);
  check_range("output_slots", step.output_slots, step.outputs, 0, sampler.slots() - 1);
  check_range("output_targets", step.output_targets, step.outputs, -1, limits.vocab - 1);
  std::vector<bool> used(size_t(sampler.slots()));
  for (int32_t r = 0; r < step.outputs; r++) {
    int32_t slot = step.output_slots[r];
    require(sampler.is_set(slot), entry("output_slots", r, slot), "that slot was never set; call set_slot first");
    if (step.output_targets[r] >= 0) continue;
    require(!used[size_t(slot)], entry("output_slots", r, slot), "that slot already draws a token in this step");
    used[size_t(slot)] = true;
  }
  return highest;
}

}  // namespace octavo
