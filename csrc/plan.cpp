#include "plan.h"

#include <algorithm>
#include <cstring>

#include "op_attention.h"
#include "require.h"

namespace octavo {
namespace {

// Partial rows of attention that a plan has room for (memory is touched only as far as they are used): with more,
// attention is cut less finely and shares less, and computes the same.
constexpr int64_t kPartialRows = 65536;

// Most rows that a linear group's threads prepare each for itself.
constexpr int32_t kOwnRows = 8;

// Floats from one row of a buffer to the next: whole cache lines, and an odd number of them. A tile's columns of 16 rows
// are written together; with rows of, say, 1536 floats they would all fall into two sets of the first-level cache.
constexpr int64_t kLineFloats = 16;

int64_t row_stride(int64_t floats) { return ((floats + kLineFloats - 1) / kLineFloats | 1) * kLineFloats; }

template <typename T>
const T& at(const std::vector<T>& list, int32_t id, const char* what) {
  require(id >= 0 && size_t(id) < list.size(), std::string("there is no ") + what + " " + std::to_string(id));
  return list[size_t(id)];
}

void require_width(const char* what, int64_t actual, int64_t wanted) {
  require(actual == wanted,
          std::string(what) + " has width " + std::to_string(actual) + "; it must be " + std::to_string(wanted));
}

// `size` wide, one row a thread.
template <typename T>
T* per_thread(Arena& arena, int64_t stride, int32_t threads) {
  return arena.take_array<T>(stride * threads);
}

struct PackJob {
  const KernelTable* kernels;
  PackedWeight weight;
  uint8_t* tiles;
  const uint8_t* rows;
  int64_t row_bytes;
  const int32_t* row_index;
  int32_t count, per_item;

  void item(int32_t item, int32_t) noexcept {
    for (int32_t t = item * per_item; t < std::min(count, (item + 1) * per_item); t++)
      kernels->pack_tile(weight.format, weight.activation, rows, row_bytes, row_index, weight.n, weight.k, t,
                         tiles + t * weight.tile_bytes);
  }
};

}  // namespace

Plan::Plan(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool, const PlanLimits& limits,
           const std::vector<KvShape>& kv)
    : kernels_(kernels), pool_(std::move(pool)), limits_(limits), sampler_(limits.max_seqs, limits.vocab),
      kv_(kv, limits.num_pages, limits.page_size) {
  for (const KvShape& group : kv) kv_windows_.push_back(group.window);
  require(limits.max_tokens > 0 && limits.max_seqs > 0 && limits.max_blocks > 0 && limits.vocab > 0,
          "max_tokens, max_seqs, max_blocks and vocab must be positive");
}

// ------------------------------------------------------------------------------------------------------- recording

int32_t Plan::add_rows(int32_t width) {
  require(width > 0, "a row buffer's width is " + std::to_string(width) + "; it must be positive");
  int64_t stride = row_stride(width);
  rows_.push_back({workspace_.take_array<float>(stride * limits_.max_tokens), width, stride});
  if (stride > row_scratch_.stride)
    row_scratch_ = {per_thread<float>(workspace_, stride, pool_->threads()), stride};
  return int32_t(rows_.size()) - 1;
}

int32_t Plan::add_prepared(ActivationKind kind, int32_t k) {
  require(k > 0, "prepared rows have " + std::to_string(k) + " elements; it must be positive");
  int64_t row_bytes = kernels_.prepared_row_bytes(kind, k);
  int32_t rows = std::max(limits_.max_tokens, limits_.max_seqs);
  prepared_.push_back({kind, rows, k, row_bytes, workspace_.take(row_bytes * rows)});
  own_rows_.push_back({workspace_.take(row_bytes * kOwnRows * pool_->threads()), nullptr});
  return int32_t(prepared_.size()) - 1;
}

int32_t Plan::add_weight(WeightFormat format, ActivationKind activation, int32_t n, int32_t k, const uint8_t* rows,
                         int64_t row_count, int64_t row_bytes, const int32_t* row_index) {
  require(n > 0 && k > 0, "a weight's shape is " + std::to_string(n) + " x " + std::to_string(k));
  int64_t tile_bytes = kernels_.packed_tile_bytes(format, activation, k);
  require(tile_bytes > 0, "this weight format can't be multiplied in that activation type, or its width of " +
                              std::to_string(k) + " does not divide into the format's blocks");
  for (int32_t i = 0; i < n; i++) {
    int64_t source = row_index ? row_index[i] : i;
    require(source >= 0 && source < row_count, "output " + std::to_string(i) + " of a weight is its row " +
                                                   std::to_string(source) + "; it has " + std::to_string(row_count));
  }
  int32_t tiles = (n + 15) / 16;
  uint8_t* memory = weight_memory_.take(tile_bytes * tiles);
  weights_.push_back({format, activation, n, k, tile_bytes, memory});
  int32_t per_item = std::max<int32_t>((tiles + 63) / 64, 1);
  PackJob job{&kernels_, weights_.back(), memory, rows, row_bytes, row_index, tiles, per_item};
  Stage stage = stage_of(&job, (tiles + per_item - 1) / per_item);
  pool_->run({&stage, 1});
  return int32_t(weights_.size()) - 1;
}

int32_t Plan::add_vector(const float* values, int32_t count) {
  require(count > 0, "a vector has no elements");
  float* copy = weight_memory_.take_array<float>(count);
  std::memcpy(copy, values, sizeof(float) * size_t(count));
  vectors_.push_back({copy, count});
  return int32_t(vectors_.size()) - 1;
}

const Rows& Plan::rows_at(int32_t id) const { return at(rows_, id, "row buffer"); }
const PreparedRows& Plan::prepared_at(int32_t id) const { return at(prepared_, id, "prepared buffer"); }
const PackedWeight& Plan::weight_at(int32_t id) const { return at(weights_, id, "weight"); }

const float* Plan::vector_at(int32_t id, int32_t count) const {
  const Vector& vector = at(vectors_, id, "vector");
  require_width("a vector", vector.count, count);
  return vector.values;
}

// A copy that lives as long as the plan; null for an empty vector.
const float* Plan::keep(const std::vector<float>& values) {
  return values.empty() ? nullptr : vectors_[size_t(add_vector(values.data(), int32_t(values.size())))].values;
}

void Plan::embed(int32_t weight, float scale, int32_t out) {
  const PackedWeight& table = weight_at(weight);
  require(table.n >= limits_.vocab, "the embedding has " + std::to_string(table.n) + " rows; the vocabulary has " +
                                        std::to_string(limits_.vocab));
  require_width("the embedding's output", rows_at(out).width, table.k);
  ops_.push_back(std::make_unique<EmbedOp>(kernels_, pool_->threads(), table, scale, rows_at(out)));
}

void Plan::add_positions(int32_t x, int32_t weight) {
  const PackedWeight& table = weight_at(weight);
  require_width("the table of positions", table.k, rows_at(x).width);
  position_rows_ = std::min(position_rows_, table.n);
  ops_.push_back(std::make_unique<AddPositionsOp>(kernels_, pool_->threads(), table, rows_at(x), row_scratch_));
}

void Plan::columns(const std::vector<int32_t>& sources, std::span<const int32_t> index, int32_t out) {
  require_width("the output", rows_at(out).width, int64_t(index.size()));
  std::vector<Rows> rows;
  int64_t total = 0;
  for (int32_t source : sources) {
    require(source != out, "columns can't be picked in place");
    rows.push_back(rows_at(source));
    total += rows.back().width;
  }
  for (int32_t column : index)
    require(column >= -1 && column < total, "column " + std::to_string(column) + " is asked for; the sources have " +
                                                std::to_string(total));
  ops_.push_back(std::make_unique<ColumnsOp>(pool_->threads(), rows, index, rows_at(out)));
}

NormArgs Plan::norm_args(const RowsShape& shape) const {
  int32_t width = rows_at(shape.x).width, groups = shape.groups;
  require(groups > 0 && width % groups == 0,
          std::to_string(groups) + " groups can't share a width of " + std::to_string(width));
  bool layer = shape.function == RowFunction::layer_norm;
  require(layer || shape.bias < 0, "an RMS norm takes no bias");
  return {layer, vector_at(shape.weight, width), shape.bias < 0 ? nullptr : vector_at(shape.bias, width), shape.eps,
          groups, width / groups};
}

void Plan::add_rows_op(const RowsShape& shape, Rows out, PreparedRows prepared) {
  const Rows& input = rows_at(shape.x);
  bool gated = is_gated(shape.function);
  if (gated) require_width("the second operand", rows_at(shape.y).width, input.width);
  NormArgs norm = is_norm(shape.function) ? norm_args(shape) : NormArgs{};
  RowsOp::Args args = {shape.function, input, gated ? rows_at(shape.y) : Rows{}, norm, shape.add, shape.scale, out,
                       prepared, row_scratch_};
  ops_.push_back(std::make_unique<RowsOp>(kernels_, pool_->threads(), args));
}

void Plan::rows(const RowsShape& shape, int32_t out) {
  require_width("the output", rows_at(out).width, rows_at(shape.x).width);
  add_rows_op(shape, rows_at(out), {});
}

void Plan::rows_prepared(const RowsShape& shape, int32_t prepared) {
  require(!shape.add, "rows are added to rows, not to prepared ones");
  require_width("the prepared output", prepared_at(prepared).k, rows_at(shape.x).width);
  add_rows_op(shape, {}, prepared_at(prepared));
  own_rows_[size_t(prepared)].op = nullptr;
}

void Plan::linear(int32_t prepared, const std::vector<ProjectionIds>& projections, bool accumulate) {
  const PreparedRows& input = prepared_at(prepared);
  require(!projections.empty(), "a linear group has no projections");
  std::vector<Projection> bound;
  for (const ProjectionIds& ids : projections) {
    const PackedWeight& weight = weight_at(ids.weight);
    require_width("a linear group's input", input.k, weight.k);
    require_width("a projection's output", rows_at(ids.out).width, weight.n);
    require(weight.activation == input.kind, "a weight was packed for another type of activations than its input has");
    bound.push_back({weight, ids.bias < 0 ? nullptr : vector_at(ids.bias, weight.n), rows_at(ids.out)});
  }
  add_linear_op(prepared, std::make_unique<LinearOp>(kernels_, pool_->threads(), input, bound, accumulate), bound);
}

// An op that prepares the group's input, and does nothing else, becomes part of the group.
void Plan::add_linear_op(int32_t prepared, std::unique_ptr<LinearOp> op, const std::vector<Projection>& projections) {
  OwnRows& own = own_rows_[size_t(prepared)];
  if (own.op) own.op->keep_prepared();
  const PreparedRows& input = prepared_at(prepared);
  auto* rows = ops_.empty() ? nullptr : dynamic_cast<RowsOp*>(ops_.back().get());
  bool fits = rows && rows->args().prepared.data == input.data;
  for (const Projection& p : projections)
    fits = fits && p.out.data != rows->args().x.data && p.out.data != rows->args().y.data;
  if (fits) {
    ops_.back().release();
    op->prepare_with(std::unique_ptr<RowsOp>(rows), own.memory, kOwnRows);
    ops_.pop_back();
    if (!op_begins_.empty()) op_begins_.back() = std::min(op_begins_.back(), ops_.size());  // its time is the group's
    own.op = op.get();
  }
  if (last_linear_) last_linear_->set_next(op.get());
  last_linear_ = op.get();
  ops_.push_back(std::move(op));
}

PreparedRows Plan::take_prepared(ActivationKind kind, int32_t rows, int32_t k) {
  int64_t row_bytes = kernels_.prepared_row_bytes(kind, k);
  return {kind, rows, k, row_bytes, workspace_.take(row_bytes * rows)};
}

Rows Plan::take_rows(int32_t rows, int32_t width) {
  int64_t stride = row_stride(width);
  return {workspace_.take_array<float>(stride * rows), width, stride};
}

// Experts' matrices of one kind have one shape and activation type.
const PackedWeight& Plan::expert_weight(int32_t id, const PackedWeight& like) const {
  const PackedWeight& weight = weight_at(id);
  require_width("an expert's input", weight.k, like.k);
  require_width("an expert's output", weight.n, like.n);
  require(weight.activation == like.activation, "experts were packed for different types of activations");
  return weight;
}

const MoeScratch& Plan::moe_scratch(const RoutingShape& routing, const PackedWeight& up, const PackedWeight& down) {
  for (const KnownMoeScratch& known : moe_scratch_)
    if (known.experts == routing.experts && known.used == routing.used && known.hidden == up.n && known.width == up.k &&
        known.input == up.activation && known.active == down.activation)
      return known.scratch;
  int32_t rows = limits_.max_tokens * routing.used, threads = pool_->threads();
  MoeScratch s{};
  s.max_rows = rows;
  s.input = take_prepared(up.activation, rows, up.k);
  s.active = take_prepared(down.activation, rows, down.k);
  s.gate = take_rows(rows, up.n);
  s.up = take_rows(rows, up.n);
  s.down = take_rows(rows, down.n);
  s.experts = workspace_.take_array<int32_t>(rows);
  s.weights = workspace_.take_array<float>(rows);
  s.place = workspace_.take_array<int32_t>(rows);
  s.source = workspace_.take_array<int32_t>(rows);
  s.start = workspace_.take_array<int32_t>(routing.experts + 1);
  s.busy = workspace_.take_array<int32_t>(routing.experts + 1);
  s.choice = {per_thread<float>(workspace_, row_stride(4 * routing.experts), threads), row_stride(4 * routing.experts)};
  s.row = {per_thread<float>(workspace_, row_stride(up.n), threads), row_stride(up.n)};
  moe_scratch_.push_back({routing.experts, routing.used, up.n, up.k, up.activation, down.activation, s});
  return moe_scratch_.back().scratch;
}

void Plan::moe(int32_t prepared, int32_t logits, int32_t correction, const std::vector<ExpertIds>& experts,
               const RoutingShape& routing, const GateShape& gate, int32_t out) {
  const PreparedRows& input = prepared_at(prepared);
  require(routing.experts > 0 && experts.size() == size_t(routing.experts), "there must be as many experts as are routed to");
  require(routing.used > 0 && routing.used <= routing.experts, "a token must use 1 to all experts");
  require(routing.groups > 0 && routing.experts % routing.groups == 0 && routing.used_groups > 0 &&
              routing.used_groups <= routing.groups &&
              routing.used <= routing.used_groups * (routing.experts / routing.groups),
          "groups must divide the experts, and those used must hold as many as a token uses");
  require_width("the router's output", rows_at(logits).width, routing.experts);
  const PackedWeight &up = weight_at(experts.front().up.weight), &down = weight_at(experts.front().down.weight);
  require_width("the experts' input", input.k, up.k);
  require_width("the experts' inner width", down.k, up.n);
  require_width("the experts' output", rows_at(out).width, down.n);
  require(up.activation == input.kind, "experts were packed for another type of activations than their input has");
  if (OwnRows& own = own_rows_[size_t(prepared)]; own.op) own.op->keep_prepared();
  MoeOp::Args args{};
  args.routing = routing;
  args.gate = gate;
  args.correction = correction < 0 ? nullptr : vector_at(correction, routing.experts);
  args.logits = rows_at(logits);
  args.out = rows_at(out);
  args.input = input;
  auto bias = [&](int32_t id, int32_t n) { return id < 0 ? nullptr : vector_at(id, n); };
  for (const ExpertIds& ids : experts)
    args.experts.push_back({expert_weight(ids.gate.weight, up), expert_weight(ids.up.weight, up),
                            expert_weight(ids.down.weight, down), bias(ids.gate.bias, up.n), bias(ids.up.bias, up.n),
                            bias(ids.down.bias, down.n)});
  args.scratch = moe_scratch(routing, up, down);
  ops_.push_back(std::make_unique<MoeOp>(kernels_, pool_->threads(), std::move(args)));
}

// The table of these frequencies; the op that fills it is recorded with their first user.
const float* Plan::rope_table(const AttentionShape& shape) {
  if (shape.inv_freq.empty()) return nullptr;
  for (const RopeTable& known : rope_tables_)
    if (known.inv_freq == shape.inv_freq && known.amplitude == shape.amplitude) return known.table;
  int32_t rotary = 2 * int32_t(shape.inv_freq.size());
  float* table = workspace_.take_array<float>(int64_t(rotary) * limits_.max_tokens);
  rope_tables_.push_back({shape.inv_freq, shape.amplitude, table});
  RopeTableArgs args = {nullptr, keep(shape.inv_freq), rotary, shape.amplitude, table};
  ops_.push_back(std::make_unique<RopeTableOp>(kernels_, pool_->threads(), args));
  return table;
}

// Where a layer stores its K and V.
const KvLayout& Plan::layout_of(const AttentionShape& shape) const {
  require(shape.group >= 0 && shape.group < kv_.groups(), "there is no KV group " + std::to_string(shape.group));
  require(shape.layer >= 0 && shape.layer < kv_.shape(shape.group).layers,
          "there is no KV layer " + std::to_string(shape.layer));
  return kv_.layout(shape.group);
}

void Plan::rope_and_store(int32_t q, int32_t k, int32_t v, const AttentionShape& shape) {
  const KvLayout& layout = layout_of(shape);
  require_width("q", rows_at(q).width, int64_t(shape.q_heads) * layout.head_dim);
  require_width("k", rows_at(k).width, int64_t(layout.kv_heads) * layout.head_dim);
  require_width("v", rows_at(v).width, int64_t(layout.kv_heads) * layout.head_dim);
  require(2 * shape.inv_freq.size() <= size_t(layout.head_dim), "more elements rotate than a head has");
  for (const std::vector<float>* norm : {&shape.q_norm, &shape.k_norm})
    if (!norm->empty()) require_width("a head norm", int64_t(norm->size()), layout.head_dim);
  const Rows &q_rows = rows_at(q), &k_rows = rows_at(k), &v_rows = rows_at(v);
  RopeStoreArgs args{};
  args.kv = layout;
  args.layer = shape.layer;
  args.q_heads = shape.q_heads;
  args.q = q_rows.data;
  args.k = k_rows.data;
  args.v = v_rows.data;
  args.q_stride = q_rows.stride;
  args.k_stride = k_rows.stride;
  args.v_stride = v_rows.stride;
  args.rotation = rope_table(shape);
  args.rotary = 2 * int32_t(shape.inv_freq.size());
  args.q_norm = keep(shape.q_norm);
  args.k_norm = keep(shape.k_norm);
  args.norm_eps = shape.norm_eps;
  ops_.push_back(std::make_unique<RopeStoreOp>(kernels_, pool_->threads(), shape.group, args));
}

// Partial rows, for layers that run one after another.
float* Plan::partials(int32_t head_dim) {
  if (head_dim > partials_head_dim_) {
    partials_ = workspace_.take_array<float>(kPartialRows * (head_dim + 2));
    partials_head_dim_ = head_dim;
  }
  return partials_;
}

// Layers that read equal numbers of heads through one block table share how attention is cut.
const AttentionPlan& Plan::attention_plan(const AttentionShape& shape) {
  for (const PlannedAttention& known : attention_plans_)
    if (known.group == shape.group && known.q_heads == shape.q_heads && known.window == shape.window) return *known.plan;
  const KvLayout& layout = kv_.layout(shape.group);
  attention_plans_.push_back(
      {shape.group, shape.q_heads, shape.window,
       std::make_unique<AttentionPlan>(layout, shape.q_heads, shape.window, pool_->threads(), kPartialRows)});
  int64_t scratch = (kernels_.attention_scratch_bytes(layout, shape.q_heads) + 63) / 64 * 64;
  if (scratch > attention_scratch_stride_) {
    attention_scratch_stride_ = scratch;
    attention_scratch_ = per_thread<uint8_t>(workspace_, scratch, pool_->threads());
  }
  return *attention_plans_.back().plan;
}

void Plan::attention(int32_t q, int32_t out, const AttentionShape& shape) {
  const KvLayout& layout = layout_of(shape);
  require(shape.q_heads > 0 && shape.q_heads % layout.kv_heads == 0,
          std::to_string(shape.q_heads) + " query heads can't share " + std::to_string(layout.kv_heads) + " KV heads");
  require(shape.window >= 0, "window is " + std::to_string(shape.window) + "; it must not be negative");
  int32_t kept = kv_.shape(shape.group).window;
  require(kept == 0 || (shape.window > 0 && shape.window <= kept),
          "a layer sees " + (shape.window ? std::to_string(shape.window) + " tokens" : std::string("all tokens")) +
              "; its KV group keeps " + std::to_string(kept));
  if (!shape.sinks.empty()) require_width("sinks", int64_t(shape.sinks.size()), shape.q_heads);
  const Rows &q_rows = rows_at(q), &out_rows = rows_at(out);
  require_width("q", q_rows.width, int64_t(shape.q_heads) * layout.head_dim);
  require_width("attention's output", out_rows.width, q_rows.width);
  const AttentionPlan& cut = attention_plan(shape);
  AttentionArgs args{};
  args.kv = layout;
  args.layer = shape.layer;
  args.q_heads = shape.q_heads;
  args.scale = shape.scale;
  args.softcap = shape.softcap;
  args.window = shape.window;
  args.sinks = keep(shape.sinks);
  args.q = q_rows.data;
  args.out = out_rows.data;
  args.q_stride = q_rows.stride;
  args.out_stride = out_rows.stride;
  args.partials = partials(layout.head_dim);
  ops_.push_back(std::make_unique<AttentionOp>(kernels_, cut, args, shape.group, pool_->threads(), attention_scratch_,
                                               attention_scratch_stride_));
}

void Plan::keep_outputs(const std::vector<int32_t>& rows) {
  require(kept_from_ == SIZE_MAX, "only output rows have been kept before");
  require(!ops_.empty() && dynamic_cast<AttentionOp*>(ops_.back().get()), "output rows are kept right after an attention");
  std::vector<Rows> buffers;
  for (int32_t id : rows) buffers.push_back(rows_at(id));
  ops_.push_back(std::make_unique<KeepOutputsOp>(std::move(buffers)));
  kept_from_ = ops_.size();
}

void Plan::head(const RowsShape& norm, int32_t weight, float scale, float softcap) {
  require(!head_, "a plan has one head, and this one has it already");
  require(is_norm(norm.function), "the head begins with a norm");
  const Rows& input = rows_at(norm.x);
  const PackedWeight& matrix = weight_at(weight);
  require_width("the head's input", input.width, matrix.k);
  require_width("the head's output", matrix.n, limits_.vocab);
  HeadOp::Args args{};
  args.x = input;
  args.norm = norm_args(norm);
  args.weight = matrix;
  args.scale = scale;
  args.softcap = softcap;
  args.prepared = prepared_at(add_prepared(matrix.activation, matrix.k));
  args.norm_scratch = row_scratch_;
  int64_t stride = row_stride(matrix.n);
  int32_t rows = std::min(HeadOp::kBlockRows, std::max(limits_.max_tokens, limits_.max_seqs));
  args.logits = {workspace_.take_array<float>(stride * rows), matrix.n, stride};
  args.sample_scratch_stride = (kernels_.sample_scratch_bytes(matrix.n) + 63) / 64 * 64;
  args.sample_scratch = per_thread<uint8_t>(workspace_, args.sample_scratch_stride, pool_->threads());
  auto op = std::make_unique<HeadOp>(kernels_, pool_->threads(), args, sampler_);
  head_ = op.get();
  if (last_linear_) last_linear_->set_next(head_);
  ops_.push_back(std::move(op));
}

// ---------------------------------------------------------------------------------------------------------- running

}  // namespace octavo
