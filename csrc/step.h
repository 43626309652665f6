// One step as the plan sees it: sizes, and pointers into arrays that the caller owns.
#pragma once
#include <cstdint>
#include <vector>

#include "sampler.h"

namespace octavo {

// Largest values of the symbolic sizes.
struct PlanLimits {
  int32_t max_tokens, max_seqs, max_blocks, num_pages, page_size, vocab;
};

struct Step {
  int32_t tokens_count, seqs, outputs;  // T, S, R
  const int32_t* tokens;                // [T]
  const int32_t* positions;             // [T]
  const int32_t* token_seq;             // [T]
  const int32_t* query_start;           // [S + 1]
  const int32_t* context_len;           // [S]
  const int32_t* block_table;           // [groups][S][block_stride], groups `group_stride` apart
  int64_t block_stride;
  const int32_t* output_rows;           // [R]
  const int32_t* output_slots;          // [R]
  const int32_t* output_targets;        // [R] -1: draw; else the token whose log-probability is asked for
  int64_t group_stride = 0;

  const int32_t* blocks_of(int32_t group) const { return block_table + group * group_stride; }
};

// Where a step's results go; only `logits` may be null. Top entries that a row's slot did not ask for become -1 and 0.
struct StepResults {
  int32_t* tokens;        // [R]
  float* logprobs;        // [R]
  int32_t* top_ids;       // [R][top_stride]
  float* top_logprobs;    // [R][top_stride]
  int64_t top_stride;
  float* logits;          // [R][vocab] untouched
};

// Proves that T, S and R are within the limits. Throws std::invalid_argument.
void check_sizes(const Step& step, const PlanLimits& limits);

// Proves that no kernel can be led outside its buffers by this step, whatever the arrays hold. `windows`: of each KV
// group, 0 for none; its block table must hold pages from the first that a token of the step sees on. Throws
// std::invalid_argument that names the array, the entry and the limit. Returns the highest page in use, -1 for none.
int32_t check_step(const Step& step, const PlanLimits& limits, const std::vector<int32_t>& windows,
                   const Sampler& sampler);

}  // namespace octavo
