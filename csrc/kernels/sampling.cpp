// Draws one token from the logits of one row. The rule is written down in backends/reference/sampling.py; the steps
// here bear its numbers. One thread does a row from end to end, so a row's token can't depend on its neighbours.
#include "../levels.h"
#include "sampling_dense.h"
#include "sampling_random.h"
#include "sampling_select.h"
#include "sampling_xtc.h"

namespace octavo {
namespace OCTAVO_LEVEL {
namespace {

constexpr float kGreedyBelow = 1e-5f;
constexpr float kLargestFinite = 3.4028235e38f;
constexpr uint32_t kDraw = 0, kExclude = 1;  // purposes of random numbers
constexpr int32_t kSumBlock = 256;  // ids whose weights are summed before a running sum takes them

OCTAVO_INLINE float infinity() { return bits_to_float(0x7f800000u); }
OCTAVO_INLINE int32_t padded(int32_t vocab) { return (vocab + kSumBlock - 1) / kSumBlock * kSumBlock; }

struct Scratch {
  float* logit;    // [padded] after masks, bias and penalties
  float* weight;   // [padded]
  int32_t* id;         // [padded]
  uint32_t* key;       // [padded]
  double* block_sums;  // [padded / kSumBlock]
};

OCTAVO_INLINE Scratch scratch_of(uint8_t* memory, int32_t vocab) {
  int64_t n = padded(vocab);
  return {(float*)memory, (float*)memory + n, (int32_t*)memory + 2 * n, (uint32_t*)memory + 3 * n,
          (double*)(memory + 16 * n)};
}

int64_t sample_scratch_bytes(int32_t vocab) {
  return int64_t(padded(vocab)) * 16 + padded(vocab) / kSumBlock * int64_t(sizeof(double));
}

// The largest value; NaN counts as minus infinity.
float largest_of(const float* logits, int32_t vocab) {
  f32x16 best = set1(-infinity());
  int32_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) best = max(load(logits + i), best);
  float result = reduce_max(best);
  for (; i < vocab; i++) result = logits[i] > result ? logits[i] : result;
  return result;
}

// The lowest id whose value is `largest`, which some id has.
int32_t lowest_id_of(const float* logits, int32_t vocab, float largest) {
  int32_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes)
    if (uint32_t mask = mask_ge(load(logits + i), set1(largest))) return i + __builtin_ctz(mask);
  while (!(logits[i] >= largest)) i++;
  return i;
}

// 0 if nothing is above minus infinity.
int32_t greedy(const float* logits, int32_t vocab) {
  float largest = largest_of(logits, vocab);
  return largest == -infinity() ? 0 : lowest_id_of(logits, vocab, largest);
}

// A copy without NaN, its padding minus infinity.
void copy_logits(const float* logits, int32_t vocab, float* out) {
  f32x16 lowest = set1(-infinity());
  int32_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) store(out + i, max(load(logits + i), lowest));
  for (; i < vocab; i++) out[i] = logits[i] > -infinity() ? logits[i] : -infinity();
  for (; i < padded(vocab); i++) out[i] = -infinity();
}

// `logit` is padded: a word of the mask may reach beyond the vocabulary.
void mask_all_but(const uint32_t* allowed, int32_t vocab, float* logit) {
  for (int32_t base = 0; base < vocab; base += 32) {
    uint32_t bits = allowed[base / 32];
    if (bits == 0) {
      for (int32_t i = base; i < base + 32; i += kLanes) store(logit + i, set1(-infinity()));
      continue;
    }
    for (uint32_t others = ~bits; others; others &= others - 1) logit[base + __builtin_ctz(others)] = -infinity();
  }
}

// Step 1.
void mask(const SampleState& state, int32_t vocab, float* logit) {
  for (int32_t i = 0; i < state.banned; i++) logit[state.banned_ids[i]] = -infinity();
  if (state.allowed) mask_all_but(state.allowed, vocab, logit);
}

// Steps 2 and 3.
void bias_and_penalise(const SampleParams& params, const SampleState& state, float* logit) {
  for (int32_t i = 0; i < state.biases; i++) logit[state.bias_ids[i]] += state.bias_values[i];
  if (params.repetition != 1.0f)
    for (int32_t i = 0; i < state.seen; i++) {
      float& l = logit[state.seen_ids[i]];
      l = l > 0.0f ? l / params.repetition : l * params.repetition;
    }
  if (params.presence != 0.0f || params.frequency != 0.0f)
    for (int32_t i = 0; i < state.seen; i++) {
      if (!state.out_counts[i]) continue;
      float& l = logit[state.seen_ids[i]];
      l = (l - params.frequency * float(state.out_counts[i])) - params.presence;
    }
  for (int32_t i = 0; i < state.dried; i++) logit[state.dry_ids[i]] -= state.dry_penalties[i];
}

// weight[id] = exp((logit[id] - largest) / temperature), and the sum of all; NaN weighs nothing. Sums are in f64, lanes
// of 256 ids first and then these blocks in order: a function of the ids alone.
double weigh(const float* logit, int32_t vocab, float largest, float temperature, float* weight, double* block_sums) {
  double total = 0.0;
  for (int32_t block = 0; block < vocab; block += kSumBlock) {
    f64x16 lanes = zero_f64();
    for (int32_t i = block; i < block + kSumBlock; i += kLanes) {
      f32x16 w = zero();
      if (i + kLanes <= vocab) {
        w = exp(div(sub(load(logit + i), set1(largest)), set1(temperature)));
      } else if (i < vocab) {
        f32x16 l = select_n(load_n(logit + i, vocab - i), set1(-infinity()), vocab - i);
        w = exp(div(sub(l, set1(largest)), set1(temperature)));
      }
      store(weight + i, w);
      lanes = add(lanes, w);
    }
    block_sums[block / kSumBlock] = reduce_add(lanes);
    total += block_sums[block / kSumBlock];
  }
  return total;
}

OCTAVO_INLINE bool by_rank(const SampleParams& params, int32_t vocab) { return params.top_k > 0 && params.top_k < vocab; }

// Steps 6 to 8: gathers the ids that may be drawn. False if there are too many.
bool keep(const SampleParams& params, int32_t vocab, double total, Candidates& c) {
  float lowest_weight = 1e-45f;  // ids of weight 0 are never drawn
  if (by_rank(params, vocab)) {
    if (!collect(c, c.logit, vocab, top_k_bound(c.logit, vocab, params.top_k))) return false;
    if (c.count > params.top_k) apply_cut_off(c, false, find_cut_off(c, false, double(params.top_k)));
    total = weight_sum(c);
  } else {
    // With top-p: all ids below this bound together weigh less than half of what it may drop.
    float bound = params.top_p < 1.0f ? float(0.5 * (1.0 - double(params.top_p)) * total / double(vocab)) : params.min_p;
    if (!collect(c, c.weight, vocab, bound > lowest_weight ? bound : lowest_weight)) return false;
  }
  if (params.top_p < 1.0f) {
    double target = double(params.top_p) * total;
    apply_cut_off(c, true, find_cut_off(c, true, target));
  }
  if (params.min_p > 0.0f) {
    int32_t kept = 0;
    for (int32_t i = 0; i < c.count; i++)
      if (c.weight[c.id[i]] >= params.min_p) c.id[kept++] = c.id[i];
    c.count = kept;
  }
  return true;
}

// Sums of weights by blocks, and of all: what `weigh` gives, of weights that are there.
double sum_blocks(const float* weight, int32_t vocab, double* block_sums) {
  double total = 0.0;
  for (int32_t block = 0; block < vocab; block += kSumBlock) {
    f64x16 lanes = zero_f64();
    for (int32_t i = block; i < block + kSumBlock; i += kLanes) lanes = add(lanes, load(weight + i));
    block_sums[block / kSumBlock] = reduce_add(lanes);
    total += block_sums[block / kSumBlock];
  }
  return total;
}

// Steps 6 to 8 in place: the other weights become 0. `total` and `block_sums` follow.
void keep_dense(const SampleParams& params, int32_t vocab, float largest, double* total, double* block_sums, Dense& d) {
  // Beyond 32 temperatures under the largest, all ids of any vocabulary together weigh less than 1e-8 of it.
  float weighty = 32.0f * params.temperature;
  if (by_rank(params, vocab)) {
    apply_dense(d, false, dense_cut_off(d, false, double(params.top_k), largest, 1e30f));
    *total = sum_blocks(d.weight, vocab, block_sums);
  }
  if (params.top_p < 1.0f) apply_dense(d, true, dense_cut_off(d, true, double(params.top_p) * *total, largest, weighty));
  if (params.min_p > 0.0f)
    for (int32_t i = 0; i < d.padded; i += kLanes) {
      f32x16 w = load(d.weight + i);
      store(d.weight + i, keep_ge(w, w, set1(params.min_p)));
    }
  *total = sum_blocks(d.weight, vocab, block_sums);
}

// Step 9 among candidates.
int32_t draw_candidate(const Candidates& c, double u) {
  double target = u * weight_sum(c), running = 0.0;
  int32_t last = c.id[0];
  for (int32_t i = 0; i < c.count; i++) {
    double w = double(c.weight[c.id[i]]);
    running += w;
    if (w > 0.0) last = c.id[i];
    if (running > target) break;
  }
  return last;
}

// Step 9 among all ids: by blocks, then inside the block. Where rounding lets no id exceed the target, the last one
// that has weight is drawn.
int32_t draw_any(const float* weight, int32_t vocab, const double* block_sums, double total, double u) {
  double target = u * total, running = 0.0;
  int32_t blocks = padded(vocab) / kSumBlock, block = 0, last_block = 0;
  for (; block < blocks; block++) {
    if (block_sums[block] > 0.0) last_block = block;
    if (running + block_sums[block] > target) break;
    running += block_sums[block];
  }
  if (block == blocks) {
    block = last_block;
    target = double(infinity());
  }
  int32_t last = block * kSumBlock;
  for (int32_t i = block * kSumBlock; i < (block + 1) * kSumBlock; i++) {
    running += double(weight[i]);
    if (weight[i] > 0.0f) last = i;
    if (running > target) break;
  }
  return last;
}

// When the masks leave nothing: the largest of the untouched logits among the allowed ids.
int32_t greedy_allowed(const float* logits, int32_t vocab, const SampleState& state, Scratch scratch) {
  copy_logits(logits, vocab, scratch.logit);
  if (!state.allowed) return greedy(logits, vocab);
  mask_all_but(state.allowed, vocab, scratch.logit);
  float largest = largest_of(scratch.logit, vocab);
  if (largest > -infinity()) return lowest_id_of(scratch.logit, vocab, largest);
  int32_t id = 0;
  while (!(state.allowed[id / 32] >> id % 32 & 1)) id++;
  return id;
}

// Makes scratch.logit the logits of the distribution that is drawn from: what weighs nothing is minus infinity.
void leave_processed(int32_t vocab, float largest, float temperature, Scratch scratch) {
  for (int32_t i = 0; i < vocab; i++)
    scratch.logit[i] = scratch.weight[i] > 0.0f ? (scratch.logit[i] - largest) / temperature : -infinity();
}

// The same when only candidates may be drawn.
void leave_processed(const Candidates& c, int32_t vocab, float largest, float temperature, Scratch scratch) {
  float* kept = (float*)c.key;  // keys are done with
  for (int32_t i = 0; i < c.count; i++) kept[i] = scratch.weight[c.id[i]];
  for (int32_t i = 0; i < padded(vocab); i += kLanes) store(scratch.weight + i, zero());
  for (int32_t i = 0; i < c.count; i++) scratch.weight[c.id[i]] = kept[i];
  leave_processed(vocab, largest, temperature, scratch);
}

// Draws. With processed_logprobs, scratch.logit is left as the logits of the distribution that was drawn from.
int32_t choose(const float* logits, int32_t vocab, const SampleRow& row, Scratch scratch) {
  const SampleParams& params = row.params;
  const SampleState& state = row.state;
  bool is_greedy = params.temperature < kGreedyBelow;
  bool adjusted = state.banned || state.allowed || state.biases || state.seen || state.dried;
  bool by_order = by_rank(params, vocab) || params.top_p < 1.0f;  // looks at logits beside weights
  const float* logit = logits;
  if (adjusted || params.processed_logprobs || (by_order && !is_greedy)) {
    copy_logits(logits, vocab, scratch.logit);
    mask(state, vocab, scratch.logit);
    bias_and_penalise(params, state, scratch.logit);
    logit = scratch.logit;
  }
  float largest = largest_of(logit, vocab);
  if (!(largest >= -kLargestFinite && largest <= kLargestFinite)) return greedy_allowed(logits, vocab, state, scratch);
  if (is_greedy) return lowest_id_of(logit, vocab, largest);

  double total = weigh(logit, vocab, largest, params.temperature, scratch.weight, scratch.block_sums);
  double u = uniform(params.seed, params.choice, row.position, kDraw);
  bool excludes = params.xtc_probability > 0.0f &&
                  uniform(params.seed, params.choice, row.position, kExclude) < double(params.xtc_probability);
  if (by_order || params.min_p > 0.0f) {
    Candidates candidates = {logit, scratch.weight, scratch.id, scratch.key, 0};
    if (keep(params, vocab, total, candidates)) {
      if (excludes) exclude_top(candidates, double(params.xtc_threshold) * weight_sum(candidates));
      int32_t token = draw_candidate(candidates, u);
      if (params.processed_logprobs) leave_processed(candidates, vocab, largest, params.temperature, scratch);
      return token;
    }
    Dense dense = {logit, scratch.weight, padded(vocab), candidates};
    keep_dense(params, vocab, largest, &total, scratch.block_sums, dense);
  }
  if (excludes && exclude_top_dense(logit, scratch.weight, vocab, double(params.xtc_threshold) * total))
    total = sum_blocks(scratch.weight, vocab, scratch.block_sums);
  if (params.processed_logprobs) {
    int32_t token = draw_any(scratch.weight, vocab, scratch.block_sums, total, u);
    leave_processed(vocab, largest, params.temperature, scratch);
    return token;
  }
  return draw_any(scratch.weight, vocab, scratch.block_sums, total, u);
}

// The n most likely ids, ties to the lower one; n is at most 20, so an insertion list does.
void top_logits(const float* logits, int32_t vocab, int32_t n, int32_t* ids, float* values) {
  int32_t count = 0;
  float bound = -infinity();  // what a value must reach to enter
  for (int32_t base = 0; base < vocab; base += kLanes) {
    int lanes = min_int(kLanes, vocab - base);
    uint32_t candidates = mask_ge(lanes == kLanes ? load(logits + base) : load_n(logits + base, lanes), set1(bound));
    for (uint32_t left = candidates & ((1u << lanes) - 1u); left; left &= left - 1) {
      int32_t id = base + __builtin_ctz(left);
      float value = logits[id];
      if (count == n && !(value > values[n - 1])) continue;
      int32_t at = count < n ? count++ : n - 1;
      for (; at > 0 && value > values[at - 1]; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
      }
      values[at] = value;
      ids[at] = id;
      if (count == n) bound = values[n - 1];
    }
  }
  for (; count < n; count++) {  // fewer numbers than asked for: the rest is NaN
    ids[count] = -1;
    values[count] = -infinity();
  }
}

// log(softmax) of out->token and the n most likely ones. Never NaN and never above 0, whatever the logits are.
void log_probabilities(const float* logits, int32_t vocab, int32_t n, Scratch scratch, SampleOut* out) {
  float largest = largest_of(logits, vocab);
  if (largest > kLargestFinite) largest = kLargestFinite;
  if (largest < -kLargestFinite) largest = -kLargestFinite;
  double total = weigh(logits, vocab, largest, 1.0f, scratch.weight, scratch.block_sums);
  float log_total = total > 0.0 ? float(__builtin_log(total)) : 0.0f;
  auto log_probability = [&](float logit) {
    if (!(logit > -infinity())) return -infinity();
    float result = (logit - largest) - log_total;
    return result < 0.0f ? result : 0.0f;
  };
  out->logprob = log_probability(logits[out->token]);
  if (n <= 0) return;
  top_logits(logits, vocab, n, out->top_ids, out->top_logprobs);
  for (int32_t i = 0; i < n; i++) out->top_logprobs[i] = log_probability(out->top_logprobs[i]);
}

void sample(const float* logits, int32_t vocab, const SampleRow& row, uint8_t* memory, SampleOut* out) {
  Scratch scratch = scratch_of(memory, vocab);
  out->token = choose(logits, vocab, row, scratch);
  const SampleParams& params = row.params;
  if (params.logprobs >= 0)
    log_probabilities(params.processed_logprobs ? scratch.logit : logits, vocab, params.logprobs, scratch, out);
}

void score(const float* logits, int32_t vocab, int32_t top, uint8_t* memory, SampleOut* out) {
  log_probabilities(logits, vocab, top, scratch_of(memory, vocab), out);
}

}  // namespace

void fill_sampling(KernelTable* table) {
  table->sample = sample;
  table->score = score;
  table->sample_scratch_bytes = sample_scratch_bytes;
}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
