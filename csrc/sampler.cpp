#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

void require(bool holds, const char* name, double value, const std::string& limit) {
  if (!holds) throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + "; " + limit);
}

void require_ids(const char* name, const int32_t* ids, int64_t count, int32_t vocab) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw std::invalid_argument(std::string(name) + " holds token id " + std::to_string(ids[i]) +
                                  "; ids are 0 to " + std::to_string(vocab - 1));
}

void require_params(const SampleParams& p) {
  require(p.temperature >= 0.0f && std::isfinite(p.temperature), "temperature", p.temperature, "it must be at least 0");
  require(p.top_k >= 0, "top_k", p.top_k, "it must be at least 0 (0: all)");
  require(p.top_p > 0.0f && p.top_p <= 1.0f, "top_p", p.top_p, "it must be above 0 and at most 1");
  require(p.min_p >= 0.0f && p.min_p <= 1.0f, "min_p", p.min_p, "it must be from 0 to 1");
  require(p.repetition > 0.0f && std::isfinite(p.repetition), "repetition", p.repetition, "it must be above 0");
  require(std::isfinite(p.presence), "presence", p.presence, "it must be a number");
  require(std::isfinite(p.frequency), "frequency", p.frequency, "it must be a number");
  require(p.logprobs <= kMaxLogprobs, "logprobs", p.logprobs, "it must be at most " + std::to_string(kMaxLogprobs));
}

}  // namespace

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
  require(slot >= 0 && slot < slots(), "slot", slot, "slots are 0 to " + std::to_string(slots() - 1));
  require(prompt_len >= 0 && prompt_len <= count, "prompt_len", prompt_len,
          "it must be from 0 to the number of tokens, " + std::to_string(count));
  require_params(settings.params);
  require_ids("tokens", tokens, count, vocab_);
  require_ids("eos_ids", settings.eos_ids.data(), int64_t(settings.eos_ids.size()), vocab_);
  require_ids("bias_ids", settings.bias_ids.data(), int64_t(settings.bias_ids.size()), vocab_);
  require(settings.bias_ids.size() == settings.bias_values.size(), "bias_values' length",
          double(settings.bias_values.size()), "it must equal that of bias_ids");
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
