// What each running sequence is sampled with, and what of its tokens the next draw depends on.
#pragma once
#include <cstdint>
#include <vector>

#include "dry.h"
#include "kernels.h"
#include "token_sequences.h"

namespace octavo {

constexpr int32_t kMaxLogprobs = 20;  // most likely tokens that a row can report

// Sampling of one slot; see SampleParams.
struct SlotSettings {
  SampleParams params;
  int32_t min_tokens = 0;         // `eos_ids` are banned until so many tokens have been drawn
  std::vector<int32_t> eos_ids;
  std::vector<int32_t> bias_ids;  // no duplicates
  std::vector<float> bias_values;
  bool only_allowed = false;      // all ids but `allowed_ids` are banned
  std::vector<int32_t> allowed_ids = {};
  TokenSequences bad_words = {};       // the last token of each is banned where the others are the sequence's last ones
  DrySettings dry = {};
  int32_t prompt_logprobs = -1;   // of rows that report a prompt token: as SampleParams.logprobs
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
  int32_t prompt_logprobs(int32_t slot) const { return slots_[size_t(slot)].settings.prompt_logprobs; }

  // What to draw the token at `position` with; valid until the slot changes. One thread at a time for each slot.
  SampleRow row(int32_t slot, uint64_t position);
  // Counts a token that was drawn.
  void drawn(int32_t slot, int32_t token);

 private:
  struct Slot {
    SlotSettings settings;
    int32_t drawn = 0;
    bool is_set = false;
    // Ids in prompt or output, ascending, and how often each is in the output; empty unless a penalty is on.
    std::vector<int32_t> seen_ids, out_counts;
    std::vector<uint32_t> allowed;  // bit mask, empty: all
    std::vector<int32_t> history;   // all tokens; empty unless a draw depends on their order
    std::vector<int32_t> banned;    // of the next draw
    Dry dry;
  };
  static bool counts_tokens(const SampleParams& params);
  static bool keeps_history(const Slot& slot);
  static void count(Slot& slot, int32_t token, int32_t in_output);
  static void append(Slot& slot, int32_t token);
  static void ban(Slot& slot);
  void require_settings(const SlotSettings& settings) const;
  std::vector<uint32_t> bit_mask(const std::vector<int32_t>& ids) const;

  std::vector<Slot> slots_;
  int32_t vocab_;
};

}  // namespace octavo
