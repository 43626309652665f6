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
  require(p.xtc_probability >= 0.0f && p.xtc_probability <= 1.0f, "xtc_probability", p.xtc_probability,
          "it must be from 0 to 1");
  require(p.xtc_threshold >= 0.0f && p.xtc_threshold <= 1.0f, "xtc_threshold", p.xtc_threshold, "it must be from 0 to 1");
  require(p.logprobs <= kMaxLogprobs, "logprobs", p.logprobs, "it must be at most " + std::to_string(kMaxLogprobs));
}

void require_sequences(const char* name, const TokenSequences& sequences, int32_t vocab) {
  require_ids(name, sequences.singles.data(), int64_t(sequences.singles.size()), vocab);
  for (const std::vector<int32_t>& sequence : sequences.longer) {
    require(sequence.size() >= 2, name, double(sequence.size()), "a longer sequence has at least 2 tokens");
    require_ids(name, sequence.data(), int64_t(sequence.size()), vocab);
  }
}

void require_dry(const DrySettings& dry, int32_t vocab) {
  require(dry.multiplier >= 0.0f && std::isfinite(dry.multiplier), "dry multiplier", dry.multiplier,
          "it must be at least 0");
  require(dry.base >= 1.0f && std::isfinite(dry.base), "dry base", dry.base, "it must be at least 1");
  require(dry.allowed_length >= 1, "dry allowed_length", dry.allowed_length, "it must be at least 1");
  require(dry.last_n >= -1, "dry last_n", dry.last_n, "it must be at least -1 (-1: all)");
  require_sequences("dry breakers", dry.breakers, vocab);
}

}  // namespace

void Sampler::require_settings(const SlotSettings& settings) const {
  require_params(settings.params);
  require_ids("eos_ids", settings.eos_ids.data(), int64_t(settings.eos_ids.size()), vocab_);
  require_ids("bias_ids", settings.bias_ids.data(), int64_t(settings.bias_ids.size()), vocab_);
  require(settings.bias_ids.size() == settings.bias_values.size(), "bias_values' length",
          double(settings.bias_values.size()), "it must equal that of bias_ids");
  require_ids("allowed_ids", settings.allowed_ids.data(), int64_t(settings.allowed_ids.size()), vocab_);
  require(!settings.only_allowed || !settings.allowed_ids.empty(), "allowed_ids' length", 0, "it must be at least 1");
  require_sequences("bad_words", settings.bad_words, vocab_);
  require_dry(settings.dry, vocab_);
  require(settings.prompt_logprobs <= kMaxLogprobs, "prompt_logprobs", settings.prompt_logprobs,
          "it must be at most " + std::to_string(kMaxLogprobs));
}

bool Sampler::counts_tokens(const SampleParams& params) {
  return params.repetition != 1.0f || params.presence != 0.0f || params.frequency != 0.0f;
}

bool Sampler::keeps_history(const Slot& slot) {
  return !slot.settings.bad_words.longer.empty() || slot.dry.is_on();
}

void Sampler::append(Slot& slot, int32_t token) {
  slot.history.push_back(token);
  if (slot.dry.is_on()) slot.dry.grown(slot.history);
}

std::vector<uint32_t> Sampler::bit_mask(const std::vector<int32_t>& ids) const {
  std::vector<uint32_t> mask(size_t(vocab_ + 31) / 32);
  for (int32_t id : ids) mask[size_t(id) / 32] |= 1u << id % 32;
  return mask;
}

// What may not be drawn next.
void Sampler::ban(Slot& slot) {
  const SlotSettings& settings = slot.settings;
  slot.banned = settings.bad_words.singles;
  if (slot.drawn < settings.min_tokens)
    slot.banned.insert(slot.banned.end(), settings.eos_ids.begin(), settings.eos_ids.end());
  for (const std::vector<int32_t>& word : settings.bad_words.longer)
    if (ends_with(slot.history, word, word.size() - 1)) slot.banned.push_back(word.back());
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
  require_ids("tokens", tokens, count, vocab_);
  require_settings(settings);
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
  if (fresh.settings.only_allowed) fresh.allowed = bit_mask(fresh.settings.allowed_ids);
  fresh.dry = Dry(std::move(fresh.settings.dry));
  if (keeps_history(fresh))
    for (int32_t i = 0; i < count; i++) append(fresh, tokens[i]);
  slots_[size_t(slot)] = std::move(fresh);
}

SampleRow Sampler::row(int32_t slot, uint64_t position) {
  Slot& s = slots_[size_t(slot)];
  SampleState state{};
  state.seen_ids = s.seen_ids.data();
  state.out_counts = s.out_counts.data();
  state.seen = int32_t(s.seen_ids.size());
  state.bias_ids = s.settings.bias_ids.data();
  state.bias_values = s.settings.bias_values.data();
  state.biases = int32_t(s.settings.bias_ids.size());
  ban(s);
  state.banned_ids = s.banned.data();
  state.banned = int32_t(s.banned.size());
  state.allowed = s.allowed.empty() ? nullptr : s.allowed.data();
  if (s.dry.is_on()) {
    s.dry.look_back(s.history);
    state.dry_ids = s.dry.ids.data();
    state.dry_penalties = s.dry.penalties.data();
    state.dried = int32_t(s.dry.ids.size());
  }
  return {s.settings.params, state, position};
}

void Sampler::drawn(int32_t slot, int32_t token) {
  Slot& s = slots_[size_t(slot)];
  s.drawn++;
  if (counts_tokens(s.settings.params)) count(s, token, 1);
  if (keeps_history(s)) append(s, token);
}

}  // namespace octavo
