#include "sampler.h"

#include <algorithm>

namespace octavo {

bool Sampler::counts_tokens(const SampleParams& params) {
  return params.repetition != 1.0f || params.presence != 0.0f || params.frequency != 0.0f;
}

void Sampler::count(Slot& slot, int32_t token, int32_t in_output) {
  auto at = std::lower_bound(slot.seen_ids.begin(), slot.seen_ids.end(), token);
  auto count = slot.out_counts.begin() + (at - slot.seen_ids.begin());
  if (at != slot.seen_ids.end() && *at == token) {
    *count += in_output;
  } else {
    slot.seen_ids.insert(at, token);
    slot.out_counts.insert(count, in_output);
  }
}

void Sampler::set(int32_t slot, SlotSettings settings, const int32_t* tokens, int32_t count, int32_t prompt_len) {
  Slot fresh;
  fresh.settings = std::move(settings);
  fresh.drawn = count - prompt_len;
  fresh.is_set = true;
  if (counts_tokens(fresh.settings.params)) {
    fresh.seen_ids.assign(tokens, tokens + count);
    std::sort(fresh.seen_ids.begin(), fresh.seen_ids.end());
    fresh.seen_ids.erase(std::unique(fresh.seen_ids.begin(), fresh.seen_ids.end()), fresh.seen_ids.end());
    fresh.out_counts.assign(fresh.seen_ids.size(), 0);
    for (int32_t i = prompt_len; i < count; i++) Sampler::count(fresh, tokens[i], 1);
  }
  slots_[size_t(slot)] = std::move(fresh);
}

SampleRow Sampler::row(int32_t slot, uint64_t position) const {
  const Slot& s = slots_[size_t(slot)];
  SampleState state{};
  state.seen_ids = s.seen_ids.data();
  state.out_counts = s.out_counts.data();
  state.seen = int32_t(s.seen_ids.size());
  state.bias_ids = s.settings.bias_ids.data();
  state.bias_values = s.settings.bias_values.data();
  state.biases = int32_t(s.settings.bias_ids.size());
  if (s.drawn < s.settings.min_tokens) {
    state.banned_ids = s.settings.eos_ids.data();
    state.banned = int32_t(s.settings.eos_ids.size());
  }
  return {s.settings.params, state, position};
}

void Sampler::drawn(int32_t slot, int32_t token) {
  Slot& s = slots_[size_t(slot)];
  s.drawn++;
  if (counts_tokens(s.settings.params)) count(s, token, 1);
}

}  // namespace octavo
