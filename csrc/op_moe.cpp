#include "op_moe.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace octavo {
namespace {

// Rough costs, for the cut only.
constexpr double kRouteNs = 6.0, kRowNs = 0.4;
constexpr int32_t kColumns = 16;
constexpr int32_t kItemsPerThread = 8;

int32_t tiles_of(const PackedWeight& weight) { return (weight.n + kColumns - 1) / kColumns; }

void softmax(float* values, int32_t count) {
  float top = values[0], sum = 0.0f;
  for (int32_t i = 1; i < count; i++) top = std::max(top, values[i]);
  for (int32_t i = 0; i < count; i++) sum += values[i] = std::exp(values[i] - top);
  for (int32_t i = 0; i < count; i++) values[i] /= sum;
}

// The index of the largest value that is above minus infinity; ties to the lower one, -1 if there is none (NaN counts as
// none).
int32_t largest(const float* values, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; i++)
    if (values[i] > -std::numeric_limits<float>::infinity() && (best < 0 || values[i] > values[best])) best = i;
  return best;
}

float score_of_group(const float* values, int32_t count, GroupScore score) {
  int32_t first = largest(values, count);
  if (first < 0) return -std::numeric_limits<float>::infinity();
  if (score == GroupScore::max) return values[first];
  float second = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < count; i++)
    if (i != first) second = std::max(second, values[i]);
  return values[first] + second;
}

// Minus infinity for the experts of all groups but the best `used_groups`. `scores` and `kept` [groups].
void mask_groups(const RoutingShape& routing, float* scores, float* kept, float* preference) {
  int32_t size = routing.experts / routing.groups;
  for (int32_t g = 0; g < routing.groups; g++) {
    scores[g] = score_of_group(preference + g * size, size, routing.group_score);
    kept[g] = 0.0f;
  }
  for (int32_t i = 0; i < routing.used_groups; i++) {
    int32_t best = largest(scores, routing.groups);
    if (best < 0) break;
    kept[best] = 1.0f;
    scores[best] = -std::numeric_limits<float>::infinity();
  }
  for (int32_t e = 0; e < routing.experts; e++)
    if (kept[e / size] == 0.0f) preference[e] = -std::numeric_limits<float>::infinity();
}

}  // namespace

void choose_experts(const RoutingShape& routing, const float* logits, const float* correction, float* scratch,
                    int32_t* experts, float* weights) {
  float *scores = scratch, *preference = scratch + routing.experts;
  std::memcpy(scores, logits, sizeof(float) * size_t(routing.experts));
  if (routing.scoring == Scoring::softmax) softmax(scores, routing.experts);
  if (routing.scoring == Scoring::sigmoid)
    for (int32_t e = 0; e < routing.experts; e++) scores[e] = 1.0f / (1.0f + std::exp(-scores[e]));
  for (int32_t e = 0; e < routing.experts; e++) preference[e] = scores[e] + (correction ? correction[e] : 0.0f);
  if (routing.groups > 1)
    mask_groups(routing, scratch + 2 * routing.experts, scratch + 3 * routing.experts, preference);
  for (int32_t i = 0; i < routing.used; i++) {
    int32_t best = largest(preference, routing.experts);
    experts[i] = best < 0 ? i : best;  // logits of NaN choose something all the same
    preference[experts[i]] = -std::numeric_limits<float>::infinity();
  }
  std::sort(experts, experts + routing.used);
  for (int32_t i = 0; i < routing.used; i++) weights[i] = scores[experts[i]];
  if (routing.scoring == Scoring::chosen) softmax(weights, routing.used);
  float sum = 0.0f;
  for (int32_t i = 0; i < routing.used; i++) sum += weights[i];
  for (int32_t i = 0; i < routing.used; i++) {
    if (routing.normalise) weights[i] /= sum + 1e-20f;
    weights[i] *= routing.scale;
  }
}

MoeOp::MoeOp(const KernelTable& kernels, int32_t threads, Args args)
    : kernels_(kernels), threads_(threads), args_(std::move(args)) {
  hidden_product_ = {this, false, tiles_of(args_.experts.front().up)};
  down_product_ = {this, true, tiles_of(args_.experts.front().down)};
}

// How many experts have rows is not known before the step runs, only the most that can; items beyond them do nothing.
int32_t MoeOp::Product::cut(int32_t experts, int32_t threads) {
  int32_t wanted = (kItemsPerThread * threads + experts - 1) / experts;
  per_item = std::max(1, tiles / std::clamp(wanted, 1, tiles));
  chunks = (tiles + per_item - 1) / per_item;
  return experts * chunks;
}

void MoeOp::stage(const Step& step, StageList& out) {
  tokens_ = step.tokens_count;
  int32_t rows = tokens_ * args_.routing.used, experts = args_.routing.experts;
  if (tokens_ == 0) return;
  int32_t most_busy = std::min(experts, rows);
  route_cut_ = RowCut(tokens_, kRouteNs * experts, threads_);
  row_cut_ = RowCut(rows, kRowNs * args_.input.k, threads_);
  token_cut_ = RowCut(tokens_, kRowNs * args_.out.width * args_.routing.used, threads_);
  out.add(OpKind::rows, stage_with<&MoeOp::route>(route_cut_.items()));
  out.add(OpKind::rows, stage_with<&MoeOp::sort>(1));
  out.add(OpKind::rows, stage_with<&MoeOp::gather>(row_cut_.items()));
  out.add(OpKind::linear, stage_of(&hidden_product_, hidden_product_.cut(most_busy, threads_)));
  out.add(OpKind::rows, stage_with<&MoeOp::activate>(row_cut_.items()));
  out.add(OpKind::linear, stage_of(&down_product_, down_product_.cut(most_busy, threads_)));
  out.add(OpKind::rows, stage_with<&MoeOp::combine>(token_cut_.items()));
}

void MoeOp::route(int32_t item, int32_t thread) noexcept {
  int32_t used = args_.routing.used;
  for (int32_t t = route_cut_.begin(item); t < route_cut_.end(item); t++)
    choose_experts(args_.routing, args_.logits.row(t), args_.correction, args_.scratch.choice.row(thread),
                   args_.scratch.experts + t * used, args_.scratch.weights + t * used);
}

// Rows in the order of their experts, and of their tokens within one.
void MoeOp::sort(int32_t, int32_t) noexcept {
  const MoeScratch& s = args_.scratch;
  int32_t count = args_.routing.experts, rows = tokens_ * args_.routing.used;
  std::memset(s.start, 0, sizeof(int32_t) * size_t(count + 1));
  for (int32_t i = 0; i < rows; i++) s.start[s.experts[i] + 1]++;
  for (int32_t e = 0; e < count; e++) s.start[e + 1] += s.start[e];
  for (int32_t i = 0; i < rows; i++) {  // start[e] runs through e's rows and ends at the next one's first
    int32_t row = s.start[s.experts[i]]++;
    s.place[i] = row;
    s.source[row] = i / args_.routing.used;
  }
  for (int32_t e = count; e > 0; e--) s.start[e] = s.start[e - 1];
  s.start[0] = 0;
  s.busy[0] = 0;
  for (int32_t e = 0; e < count; e++)
    if (s.start[e] != s.start[e + 1]) s.busy[++s.busy[0]] = e;
}

void MoeOp::gather(int32_t item, int32_t) noexcept {
  const MoeScratch& s = args_.scratch;
  for (int32_t r = row_cut_.begin(item); r < row_cut_.end(item); r++)
    std::memcpy(const_cast<uint8_t*>(s.input.data) + r * s.input.row_bytes,
                args_.input.data + s.source[r] * args_.input.row_bytes, size_t(s.input.row_bytes));
}

void MoeOp::Product::item(int32_t item, int32_t) noexcept {
  const MoeScratch& s = op->args_.scratch;
  if (item / chunks >= s.busy[0]) return;
  int32_t expert = s.busy[1 + item / chunks], begin = item % chunks * per_item, end = std::min(tiles, begin + per_item);
  const ExpertWeights& weights = op->args_.experts[size_t(expert)];
  if (down) return op->multiply(weights.down, weights.down_bias, s.active, s.down, expert, begin, end);
  op->multiply(weights.gate, weights.gate_bias, s.input, s.gate, expert, begin, end);
  op->multiply(weights.up, weights.up_bias, s.input, s.up, expert, begin, end);
}

void MoeOp::multiply(const PackedWeight& weight, const float* bias, const PreparedRows& input, const Rows& out,
                     int32_t expert, int32_t tile_begin, int32_t tile_end) const noexcept {
  int32_t begin = args_.scratch.start[expert], end = args_.scratch.start[expert + 1];
  LinearArgs args = {&weight, input, bias, out.data, out.stride, false};
  kernels_.linear(args, tile_begin, tile_end, begin, end);
}

void MoeOp::gate_row(const float* gate, const float* up, float* out) const noexcept {
  int64_t width = args_.scratch.gate.width;
  switch (args_.gate.function) {
    case GateFunction::silu: return kernels_.silu_mul(gate, up, width, out);
    case GateFunction::gelu_tanh: return kernels_.gelu_tanh_mul(gate, up, width, out);
    case GateFunction::gelu: return kernels_.gelu_mul(gate, up, width, out);
    case GateFunction::clamped_swiglu:
      return kernels_.clamped_swiglu(gate, up, args_.gate.alpha, args_.gate.limit, width, out);
  }
}

void MoeOp::activate(int32_t item, int32_t thread) noexcept {
  const MoeScratch& s = args_.scratch;
  float* row = s.row.row(thread);
  for (int32_t r = row_cut_.begin(item); r < row_cut_.end(item); r++) {
    gate_row(s.gate.row(r), s.up.row(r), row);
    kernels_.prepare_row(s.active.kind, row, s.active.k, const_cast<uint8_t*>(s.active.data) + r * s.active.row_bytes);
  }
}

void MoeOp::combine(int32_t item, int32_t) noexcept {
  const MoeScratch& s = args_.scratch;
  int32_t used = args_.routing.used;
  for (int32_t t = token_cut_.begin(item); t < token_cut_.end(item); t++) {
    float* out = args_.out.row(t);
    std::memset(out, 0, sizeof(float) * size_t(args_.out.width));
    for (int32_t i = t * used; i < (t + 1) * used; i++)
      kernels_.add(s.down.row(s.place[i]), s.weights[i], args_.out.width, out);
  }
}

}  // namespace octavo
