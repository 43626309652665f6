// What each running sequence is sampled with, and the token counts its penalties look at.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace octavo {

constexpr int32_t kMaxLogprobs = 20;  // most likely tokens that a row can report

// Sampling of one slot; see SampleParams. `eos_ids` are banned until `min_tokens` tokens have been drawn.
struct SlotSettings {
  SampleParams params;
  int32_t min_tokens = 0;
  std::vector<int32_t> eos_ids;
  std::vector<int32_t> bias_ids;  // no duplicates
  std::vector<float> bias_values;
};

class Sampler {
 public:
  Sampler(int32_t slots, int32_t vocab) : slots_(size_t(slots)), vocab_(vocab) {}

  int32_t slots() const { return int32_t(slots_.size()); }
  int32_t vocab() const { return vocab_; }

  // `tokens` [count] are all the sequence has so far; the first `prompt_len` are its prompt. Throws
  // std::invalid_argument if the slot, an id or a parameter is out of its limits.
  void set(int32_t slot, SlotSettings settings, const int32_t* tokens, int32_t count, int32_t prompt_len);
  bool is_set(int32_t slot) const { return slots_[size_t(slot)].is_set; }
  int32_t logprobs(int32_t slot) const { return slots_[size_t(slot)].settings.params.logprobs; }

  // What to draw the token at `position` with; valid until the slot changes.
  SampleRow row(int32_t slot, uint64_t position) const;
  // Counts a token that was drawn.
  void drawn(int32_t slot, int32_t token);

 private:
  struct Slot {
    SlotSettings settings;
    int32_t drawn = 0;
    bool is_set = false;
    // Ids in prompt or output, ascending, and how often each is in the output; empty unless a penalty is on.
    std::vector<int32_t> seen_ids, out_counts;
  };
  static bool counts_tokens(const SampleParams& params);
  static void count(Slot& slot, int32_t token, int32_t in_output);

  std::vector<Slot> slots_;
  int32_t vocab_;
};

}  // namespace octavo
