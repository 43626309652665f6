// Exclude top choices: of the ids whose probability reaches a threshold, all but the last in rank are taken out.
#pragma once
#include "sampling_select.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

// The last in rank of ids that come in ascending order, and how many there were.
struct LastRanked {
  int32_t id = -1, count = 0;
};
OCTAVO_INLINE void see(LastRanked& last, const float* logit, int32_t id) {
  last.count++;
  if (last.id < 0 || logit[id] <= logit[last.id]) last.id = id;
}

// Ids without weight are never drawn, so they are not in question.
OCTAVO_INLINE bool is_top(float weight, double bound) { return weight > 0.0f && double(weight) >= bound; }

// `bound` is a weight.
void exclude_top(Candidates& c, double bound) {
  LastRanked last;
  for (int32_t i = 0; i < c.count; i++)
    if (is_top(c.weight[c.id[i]], bound)) see(last, c.logit, c.id[i]);
  if (last.count < 2) return;
  int32_t kept = 0;
  for (int32_t i = 0; i < c.count; i++)
    if (!is_top(c.weight[c.id[i]], bound) || c.id[i] == last.id) c.id[kept++] = c.id[i];
  c.count = kept;
}

// The same where weights lie; true if some became 0.
bool exclude_top_dense(const float* logit, float* weight, int32_t vocab, double bound) {
  LastRanked last;
  for (int32_t id = 0; id < vocab; id++)
    if (is_top(weight[id], bound)) see(last, logit, id);
  if (last.count < 2) return false;
  for (int32_t id = 0; id < vocab; id++)
    if (is_top(weight[id], bound) && id != last.id) weight[id] = 0.0f;
  return true;
}

}  // namespace
}  // namespace OCTAVO_LEVEL
}  // namespace octavo
