// Python bindings. Everything that comes from Python is checked here or in the function it is passed to, so that no
// call can lead a kernel outside its memory. A plan's methods take its lock, and `run` holds it without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>

#include "arrays.h"
#include "module_text.h"
#include "peaks.h"
#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace octavo;

namespace {

const KernelTable& level_or_throw(const std::string& name) {
  const char* error = nullptr;
  const KernelTable* table = find_level(name.empty() ? nullptr : name.c_str(), &error);
  if (!table) throw nb::value_error(("ISA level '" + name + "': " + error).c_str());
  return *table;
}

std::vector<std::string> level_names() {
  const KernelTable* tables[8];
  std::vector<std::string> names;
  int count = supported_levels(tables, 8);
  for (int i = 0; i < count; i++) names.push_back(tables[i]->level);
  return names;
}

std::vector<std::tuple<std::string, int32_t, int32_t, int32_t>> kv_types() {
  std::vector<std::tuple<std::string, int32_t, int32_t, int32_t>> types;
  for (const KvTypeSizes& type : kKvTypes)
    types.emplace_back(type.name, type.element_bytes, type.scale_bytes, type.scale_numbers);
  return types;
}

template <typename Enum>
Enum enum_from(int32_t value, int32_t count, const char* what) {
  if (value < 0 || value >= count)
    throw std::invalid_argument("there is no " + std::string(what) + " " + std::to_string(value));
  return Enum(value);
}

WeightFormat format_from(int32_t value) { return enum_from<WeightFormat>(value, kWeightFormatCount, "weight format"); }
ActivationKind activation_from(int32_t value) { return enum_from<ActivationKind>(value, kActivationKinds, "activation type"); }
RowFunction function_from(int32_t value) { return enum_from<RowFunction>(value, kRowFunctions, "row function"); }

// A plan that one thread at a time may use.
class LockedPlan {
 public:
  struct Access {
    std::unique_lock<std::mutex> lock;
    Plan* plan;
    Plan* operator->() const { return plan; }
  };

  LockedPlan(const std::string& level, std::shared_ptr<ThreadPool> pool, const PlanLimits& limits,
             const std::vector<KvShape>& kv)
      : limits(limits), groups(int32_t(kv.size())), plan_(level_or_throw(level), std::move(pool), limits, kv) {}
  Access locked() { return {std::unique_lock(mutex_), &plan_}; }
  const PlanLimits limits;
  const int32_t groups;  // of KV

 private:
  std::mutex mutex_;
  Plan plan_;
};

void require_row_bytes(WeightFormat format, int64_t k, int64_t row_bytes) {
  int64_t elements = stored(format).block_elements, wanted = k / elements * stored(format).block_bytes;
  if (k <= 0 || k % elements || row_bytes != wanted)
    throw std::invalid_argument("a weight's rows have " + std::to_string(row_bytes) + " bytes; " + std::to_string(k) +
                                " elements of its format take " + std::to_string(wanted) + " and come in blocks of " +
                                std::to_string(elements));
}

int32_t add_weight(LockedPlan& self, int32_t format, int32_t activation, int32_t n, int32_t k, InputArray data,
                   std::optional<InputArray> row_index) {
  require_array<uint8_t>(data, "a weight's data", 2);
  const int32_t* index = row_index ? input<int32_t>(*row_index, "row_index", n) : nullptr;
  const uint8_t* rows = static_cast<const uint8_t*>(data.data());
  int64_t row_count = int64_t(data.shape(0)), row_bytes = int64_t(data.shape(1));
  require_row_bytes(format_from(format), k, row_bytes);
  nb::gil_scoped_release release;
  return self.locked()->add_weight(format_from(format), activation_from(activation), n, k, rows, row_count, row_bytes,
                                   index);
}

void set_slot(LockedPlan& self, int32_t slot, const SlotSettings& settings, InputArray tokens, int32_t prompt_len) {
  const int32_t* ids = input<int32_t>(tokens, "tokens", 0);
  self.locked()->sampler().set(slot, settings, ids, int32_t(tokens.shape(0)), prompt_len);
}

void copy_pages(LockedPlan& self, InputArray pairs) {
  require_array<int32_t>(pairs, "pairs", 2);
  if (pairs.shape(1) != 2) throw std::invalid_argument("pairs must have two columns: source and target page");
  const int32_t* ids = static_cast<const int32_t*>(pairs.data());
  int64_t count = int64_t(pairs.shape(0));
  nb::gil_scoped_release release;
  LockedPlan::Access plan = self.locked();
  for (int64_t i = 0; i < count; i++) plan->kv().copy_page(ids[2 * i], ids[2 * i + 1]);
}

using ProfileTuple = std::tuple<int32_t, std::string, int64_t, double, double>;

std::vector<ProfileTuple> tuples(const std::vector<ProfileLine>& lines) {
  std::vector<ProfileTuple> result;
  for (const ProfileLine& line : lines)
    result.emplace_back(line.op, line.name, line.stages, line.seconds, line.wait_seconds);
  return result;
}

// The arrays of backends/ops.py Batch.
struct BatchArrays {
  InputArray tokens, positions, token_seq, query_start, context_len, block_table, output_rows, output_slots, output_targets;
};

// Fills in the pointers of a step whose sizes are set and checked.
void bind_arrays(const BatchArrays& a, int32_t groups, Step* step) {
  require_array<int32_t>(a.positions, "positions", 2);
  require_length(a.positions, "positions", 0, 1);
  require_length(a.positions, "positions", 1, step->tokens_count);
  require_array<int32_t>(a.block_table, "block_table", 3);
  require_length(a.block_table, "block_table", 0, groups);
  require_length(a.block_table, "block_table", 1, step->seqs);
  step->tokens = input<int32_t>(a.tokens, "tokens", step->tokens_count);
  step->positions = static_cast<const int32_t*>(a.positions.data());
  step->token_seq = input<int32_t>(a.token_seq, "token_seq", step->tokens_count);
  step->query_start = input<int32_t>(a.query_start, "query_start", int64_t(step->seqs) + 1);
  step->context_len = input<int32_t>(a.context_len, "context_len", step->seqs);
  step->block_table = static_cast<const int32_t*>(a.block_table.data());
  step->block_stride = int64_t(a.block_table.shape(2));
  step->group_stride = step->block_stride * int64_t(a.block_table.shape(1));
  step->output_rows = input<int32_t>(a.output_rows, "output_rows", step->outputs);
  step->output_slots = input<int32_t>(a.output_slots, "output_slots", step->outputs);
  step->output_targets = input<int32_t>(a.output_targets, "output_targets", step->outputs);
}

int32_t run(LockedPlan& self, int32_t num_tokens, int32_t num_seqs, int32_t num_outputs, InputArray tokens,
            InputArray positions, InputArray token_seq, InputArray query_start, InputArray context_len,
            InputArray block_table, InputArray output_rows, InputArray output_slots, InputArray output_targets,
            OutputArray out_tokens, OutputArray out_logprobs, OutputArray out_top_ids, OutputArray out_top_logprobs,
            std::optional<OutputArray> out_logits) {
  Step step{};
  step.tokens_count = num_tokens;
  step.seqs = num_seqs;
  step.outputs = num_outputs;
  check_sizes(step, self.limits);
  bind_arrays({tokens, positions, token_seq, query_start, context_len, block_table, output_rows, output_slots,
               output_targets}, self.groups, &step);
  StepResults results{};
  results.tokens = output<int32_t>(out_tokens, "out_tokens", num_outputs);
  results.logprobs = output<float>(out_logprobs, "out_logprobs", num_outputs);
  results.top_ids = output_matrix<int32_t>(out_top_ids, "out_top_ids", num_outputs, kMaxLogprobs);
  results.top_logprobs = output_matrix<float>(out_top_logprobs, "out_top_logprobs", num_outputs, kMaxLogprobs);
  results.top_stride = kMaxLogprobs;
  if (out_logits) results.logits = output_matrix<float>(*out_logits, "out_logits", num_outputs, self.limits.vocab);
  nb::gil_scoped_release release;
  return self.locked()->run(step, results);
}

void bind_recording(nb::class_<LockedPlan>& plan) {
  plan.def("add_rows", [](LockedPlan& self, int32_t width) { return self.locked()->add_rows(width); }, "width"_a,
           "A buffer of float32 rows; its handle.");
  plan.def("add_prepared", [](LockedPlan& self, int32_t kind, int32_t k) {
    return self.locked()->add_prepared(activation_from(kind), k);
  }, "kind"_a, "k"_a, "A buffer of rows as linear groups read them; its handle.");
  plan.def("add_weight", &add_weight, "format"_a, "activation"_a, "n"_a, "k"_a, "data"_a,
           "row_index"_a.none(), "Pack a stored matrix, uint8 [rows, row bytes], on the thread pool; its handle.");
  plan.def("add_vector", [](LockedPlan& self, InputArray values) {
    return self.locked()->add_vector(input<float>(values, "values", 1), int32_t(values.shape(0)));
  }, "values"_a, "A copy of float32 [n]; its handle.");
  plan.def("next_op", [](LockedPlan& self) { self.locked()->next_op(); },
           "What is recorded from here to the next call is profiled as one op.");
  plan.def("embed", [](LockedPlan& self, int32_t weight, float scale, int32_t out) { self.locked()->embed(weight, scale, out); },
           "weight"_a, "scale"_a, "out"_a);
  plan.def("add_positions", [](LockedPlan& self, int32_t x, int32_t weight) { self.locked()->add_positions(x, weight); },
           "x"_a, "weight"_a);
  plan.def("columns", [](LockedPlan& self, const std::vector<int32_t>& sources, InputArray index, int32_t out) {
    const int32_t* values = input<int32_t>(index, "index", 1);
    self.locked()->columns(sources, {values, size_t(index.shape(0))}, out);
  }, "sources"_a, "index"_a, "out"_a);
  plan.def("rows", [](LockedPlan& self, const RowsShape& shape, int32_t out) { self.locked()->rows(shape, out); },
           "shape"_a, "out"_a);
  plan.def("rows_prepared", [](LockedPlan& self, const RowsShape& shape, int32_t prepared) {
    self.locked()->rows_prepared(shape, prepared);
  }, "shape"_a, "prepared"_a);
  plan.def("linear", [](LockedPlan& self, int32_t prepared,
                        const std::vector<std::tuple<int32_t, int32_t, int32_t>>& projections, bool accumulate) {
    std::vector<Plan::ProjectionIds> ids;
    for (auto [weight, bias, out] : projections) ids.push_back({weight, bias, out});
    self.locked()->linear(prepared, ids, accumulate);
  }, "prepared"_a, "projections"_a, "accumulate"_a, "projections: (weight, bias or -1, output rows)");
  plan.def("moe", [](LockedPlan& self, int32_t prepared, int32_t logits, int32_t correction,
                     const std::vector<std::array<int32_t, 6>>& experts, const RoutingShape& routing, int32_t gate,
                     float alpha, float limit, int32_t out) {
    std::vector<Plan::ExpertIds> ids;
    for (const auto& e : experts) ids.push_back({{e[0], e[1], -1}, {e[2], e[3], -1}, {e[4], e[5], -1}});
    GateShape shape{enum_from<GateFunction>(gate, 4, "gate function"), alpha, limit};
    self.locked()->moe(prepared, logits, correction, ids, routing, shape, out);
  }, nb::kw_only(), "prepared"_a, "logits"_a, "correction"_a, "experts"_a, "routing"_a, "gate"_a, "alpha"_a, "limit"_a,
     "out"_a, "experts: (gate, its bias or -1, up, its bias, down, its bias)");
  plan.def("rope_and_store", [](LockedPlan& self, int32_t q, int32_t k, int32_t v, const AttentionShape& shape) {
    self.locked()->rope_and_store(q, k, v, shape);
  }, "q"_a, "k"_a, "v"_a, "shape"_a);
  plan.def("keep_outputs", [](LockedPlan& self, const std::vector<int32_t>& rows) { self.locked()->keep_outputs(rows); });
  plan.def("attention", [](LockedPlan& self, int32_t q, int32_t out, const AttentionShape& shape) {
    self.locked()->attention(q, out, shape);
  }, "q"_a, "out"_a, "shape"_a);
  plan.def("head", [](LockedPlan& self, const RowsShape& norm, int32_t weight, float scale, float softcap) {
    self.locked()->head(norm, weight, scale, softcap);
  }, "norm"_a, "weight"_a, "scale"_a, "softcap"_a);
}

void bind_running(nb::class_<LockedPlan>& plan) {
  plan.def("set_slot", &set_slot, "slot"_a, "settings"_a, "tokens"_a, "prompt_len"_a);
  plan.def("copy_pages", &copy_pages, "pairs"_a);
  plan.def("run", &run, "num_tokens"_a, "num_seqs"_a, "num_outputs"_a, "tokens"_a, "positions"_a, "token_seq"_a,
           "query_start"_a, "context_len"_a, "block_table"_a, "output_rows"_a, "output_slots"_a, "output_targets"_a, "out_tokens"_a,
           "out_logprobs"_a, "out_top_ids"_a, "out_top_logprobs"_a, "out_logits"_a.none(),
           "One forward pass, sampling included, without the GIL; the arrays must not change meanwhile. Returns the most "
           "log-probabilities that a row asked for, -1 if none did.");
  plan.def("set_profiling", [](LockedPlan& self, bool on) { self.locked()->set_profiling(on); }, "on"_a);
  plan.def("profile", [](LockedPlan& self) { return tuples(self.locked()->profile()); },
           "(-1, kind of op, stages, seconds, seconds of them without an item to run), as the calling thread saw them.");
  plan.def("profile_ops", [](LockedPlan& self) { return tuples(self.locked()->profile_ops()); },
           "The same for each op, which is the first entry, and kind of stage in it.");
  plan.def_prop_ro("pool_bytes", [](LockedPlan& self) { return self.locked()->kv().bytes(); });
  plan.def_prop_ro("weight_bytes", [](LockedPlan& self) { return self.locked()->weight_bytes(); });
  plan.def_prop_ro("workspace_bytes", [](LockedPlan& self) { return self.locked()->workspace_bytes(); });
}

void bind_peaks(nb::module_& m) {
  m.def("peak_operations_per_s", [](const std::string& level, std::shared_ptr<ThreadPool> pool, int32_t kind,
                                    double seconds) {
    const KernelTable& kernels = level_or_throw(level);
    ActivationKind activations = activation_from(kind);
    nb::gil_scoped_release release;
    return peak_operations_per_s(kernels, *pool, activations, seconds);
  }, "level"_a, "pool"_a, "kind"_a, "seconds"_a, "Multiply-adds in registers, two operations each; 0: no instruction.");
  m.def("memory_bytes_per_s", [](const std::string& level, std::shared_ptr<ThreadPool> pool, int64_t bytes, double seconds) {
    const KernelTable& kernels = level_or_throw(level);
    nb::gil_scoped_release release;
    return memory_bytes_per_s(kernels, *pool, bytes, seconds);
  }, "level"_a, "pool"_a, "bytes"_a, "seconds"_a, "Reading one buffer of this size, all threads together.");
  m.def("cache_bytes_per_s", [](const std::string& level, std::shared_ptr<ThreadPool> pool, int64_t bytes_per_thread,
                                double seconds) {
    const KernelTable& kernels = level_or_throw(level);
    nb::gil_scoped_release release;
    return cache_bytes_per_s(kernels, *pool, bytes_per_thread, seconds);
  }, "level"_a, "pool"_a, "bytes_per_thread"_a, "seconds"_a, "Each thread reading a buffer of its own again and again.");
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a process may end while something still holds a tokenizer; the system takes it all back
  m.attr("MAX_THREADS") = kMaxThreads;
  m.attr("MAX_LOGPROBS") = kMaxLogprobs;
  m.def("kv_types", kv_types, "(name, bytes of a number, bytes of the scale beside a head) of each KV type, by its number.");
  m.def("supported_levels", level_names, "ISA levels this build holds and this machine can run, best first.");
  m.def("find_level", [](const std::string& name) { return std::string(level_or_throw(name).level); }, "name"_a,
        "The level of that name, or for '' the one OCTAVO_ISA names or the best one. ValueError if there is none.");
  m.def("rms_norm", [](const std::string& level, InputArray x, InputArray weight, float eps, OutputArray out) {
    const float* values = input<float>(x, "x", 0);
    int64_t width = int64_t(x.shape(0));
    level_or_throw(level).rms_norm(values, input<float>(weight, "weight", width), eps, width,
                                   output<float>(out, "out", width));
  });

  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int32_t>(), "threads"_a)
      .def_prop_ro("threads", &ThreadPool::threads);

  nb::class_<RowsShape>(m, "RowsShape")
      .def("__init__", [](RowsShape* self, int32_t function, int32_t x, int32_t y, int32_t weight, int32_t bias,
                          float eps, int32_t groups, bool add, float scale) {
        new (self) RowsShape{function_from(function), x, y, weight, bias, eps, groups, add, scale};
      }, "function"_a, "x"_a, nb::kw_only(), "y"_a = -1, "weight"_a = -1, "bias"_a = -1, "eps"_a = 0.0f,
         "groups"_a = 1, "add"_a = false, "scale"_a = 1.0f, "A row function and its operands (csrc/plan.h).");

  nb::class_<RoutingShape>(m, "RoutingShape")
      .def("__init__", [](RoutingShape* self, int32_t experts, int32_t used, int32_t scoring, bool normalise, float scale,
                          int32_t groups, int32_t used_groups, int32_t group_score) {
        new (self) RoutingShape{experts, used, enum_from<Scoring>(scoring, 3, "scoring"), normalise, scale, groups,
                                used_groups, enum_from<GroupScore>(group_score, 2, "group score")};
      }, nb::kw_only(), "experts"_a, "used"_a, "scoring"_a, "normalise"_a, "scale"_a, "groups"_a, "used_groups"_a,
         "group_score"_a);

  nb::class_<AttentionShape>(m, "AttentionShape")
      .def("__init__", [](AttentionShape* self, int32_t layer, int32_t q_heads, int32_t window, float scale,
                          float softcap, float amplitude, float norm_eps, std::vector<float> inv_freq,
                          std::vector<float> q_norm, std::vector<float> k_norm, std::vector<float> sinks,
                          int32_t group) {
        new (self) AttentionShape{layer, q_heads, window, scale, softcap, amplitude, norm_eps, std::move(inv_freq),
                                  std::move(q_norm), std::move(k_norm), std::move(sinks), group};
      }, nb::kw_only(), "layer"_a, "q_heads"_a, "window"_a, "scale"_a, "softcap"_a, "amplitude"_a, "norm_eps"_a,
         "inv_freq"_a, "q_norm"_a, "k_norm"_a, "sinks"_a, "group"_a = 0);

  nb::class_<DrySettings>(m, "DrySettings")
      .def("__init__", [](DrySettings* self, float multiplier, float base, int32_t allowed_length, int32_t last_n,
                          std::vector<int32_t> breaker_ids, std::vector<std::vector<int32_t>> breaker_sequences) {
        new (self) DrySettings{multiplier, base, allowed_length, last_n,
                               {std::move(breaker_ids), std::move(breaker_sequences)}};
      }, nb::kw_only(), "multiplier"_a, "base"_a, "allowed_length"_a, "last_n"_a, "breaker_ids"_a,
         "breaker_sequences"_a);

  nb::class_<SlotSettings>(m, "SlotSettings")
      .def("__init__", [](SlotSettings* self, uint64_t seed, uint32_t choice, float temperature, int32_t top_k,
                          float top_p, float min_p, float repetition, float presence, float frequency,
                          float xtc_probability, float xtc_threshold, int32_t logprobs, bool processed_logprobs,
                          int32_t min_tokens, std::vector<int32_t> eos_ids, std::vector<int32_t> bias_ids,
                          std::vector<float> bias_values, std::optional<std::vector<int32_t>> allowed_ids,
                          std::vector<int32_t> bad_ids, std::vector<std::vector<int32_t>> bad_sequences,
                          std::optional<DrySettings> dry, int32_t prompt_logprobs) {
        SampleParams params{temperature, top_k, top_p, min_p, repetition, presence, frequency, logprobs, seed, choice,
                            xtc_probability, xtc_threshold, processed_logprobs};
        bool only_allowed = allowed_ids.has_value();
        new (self) SlotSettings{params, min_tokens, std::move(eos_ids), std::move(bias_ids), std::move(bias_values),
                                only_allowed, std::move(allowed_ids).value_or(std::vector<int32_t>()),
                                {std::move(bad_ids), std::move(bad_sequences)}, std::move(dry).value_or(DrySettings()),
                                prompt_logprobs};
      }, nb::kw_only(), "seed"_a, "choice"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition"_a,
         "presence"_a, "frequency"_a, "xtc_probability"_a, "xtc_threshold"_a, "logprobs"_a, "processed_logprobs"_a,
         "min_tokens"_a, "eos_ids"_a, "bias_ids"_a, "bias_values"_a, "allowed_ids"_a.none(), "bad_ids"_a,
         "bad_sequences"_a, "dry"_a.none(), "prompt_logprobs"_a);

  nb::class_<LockedPlan> plan(m, "Plan");
  plan.def("__init__", [](LockedPlan* self, const std::string& level, std::shared_ptr<ThreadPool> pool,
                          int32_t max_tokens, int32_t max_seqs, int32_t max_blocks, int32_t num_pages, int32_t page_size,
                          int32_t vocab, int32_t kv_type, const std::vector<std::array<int32_t, 4>>& groups) {
    std::vector<KvShape> kv;
    for (auto [layers, kv_heads, head_dim, window] : groups)
      kv.push_back({enum_from<KvType>(kv_type, kKvTypeCount, "KV type"), layers, kv_heads, head_dim, window});
    new (self) LockedPlan(level, std::move(pool), {max_tokens, max_seqs, max_blocks, num_pages, page_size, vocab}, kv);
  }, nb::kw_only(), "level"_a, "pool"_a, "max_tokens"_a, "max_seqs"_a, "max_blocks"_a, "num_pages"_a, "page_size"_a,
     "vocab"_a, "kv_type"_a, "groups"_a, "groups: (layers, KV heads, head_dim, window or 0) of each KV group");
  bind_recording(plan);
  bind_running(plan);
  bind_peaks(m);
  bind_text(m);
}
