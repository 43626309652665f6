// The linear layers and head of SmolLM2-135M (30 layers of q, k, v, o, gate, up, down, then the tied head) as one decode
// or prefill step runs them: the plan's own ops on its thread pool. Weights are random, each layer has its own memory, and
// so a step reads as much as the real model's.
//
//   linear_bench [--level NAME] [--format q4_1|...] [--head q8_0|...|none] [--activations int8|f32|bf16]
//                [--threads N] [--rows N]... [--repeat N] [--layers N] [--prepare 0] [--hidden N]
//
// --hidden is 576, or 512 for formats whose blocks have 256 elements.
// Prints the best and the median step, as tokens/s, weight bytes/s and multiply-adds (2 operations) /s.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "op_linear.h"

namespace {

using namespace octavo;

struct Options {
  std::string level, format = "q4_1", head = "q8_0", activations = "int8";
  int threads = 2, repeat = 5, layers = 30, prepare = 1, hidden = 0;
  std::vector<int> rows;
};

const StoredFormat& format_named(const std::string& name) {
  for (const StoredFormat& f : kWeightFormats)
    if (name == f.name) return f;
  std::fprintf(stderr, "unknown format %s\n", name.c_str());
  std::exit(2);
}

// Matrices that share an input.
struct Group {
  int k;
  std::vector<PackedWeight> weights;
};

// Weights lie one behind the other in the order of their use, as a model's do.
PackedWeight random_weight(const KernelTable& table, const StoredFormat& format, ActivationKind kind, int n, int k,
                           uint8_t** memory) {
  static uint64_t state = 88172645463325252ULL;
  int64_t row_bytes = int64_t(k) / format.block_elements * format.block_bytes, tile_bytes = table.packed_tile_bytes(format.format, kind, k);
  std::vector<uint8_t> rows(size_t(16 * row_bytes));
  for (uint8_t& b : rows) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    b = uint8_t((state & 0x2f) | 0x40);  // no exponent that makes a NaN in any format, or a subnormal number in f32
  }
  uint8_t* tiles = *memory;
  *memory += n / 16 * tile_bytes;
  table.pack_tile(format.format, kind, rows.data(), row_bytes, nullptr, 16, k, 0, tiles);
  for (int t = 1; t < n / 16; t++) std::memcpy(tiles + t * tile_bytes, tiles, size_t(tile_bytes));
  return {format.format, kind, n, k, tile_bytes, tiles};
}

// The ops of a step as a plan has them, on a plan's pool.
class Bench {
 public:
  Bench(const KernelTable& table, ActivationKind kind, const std::vector<Group>& ops, int threads, int most, bool prepares)
      : pool_(threads) {
    auto floats = [this](int64_t count) { return memory_.take_array<float>(count); };
    auto stride = [](int width) { return int64_t(width / 16 | 1) * 16; };
    ThreadRows scratch{floats(int64_t(kWidest) * threads), kWidest};
    std::map<int, PreparedRows> prepared;
    std::map<int, uint8_t*> own;
    for (const Group& op : ops) {
      bool is_head = op.weights[0].n > kWidest;
      int64_t row_bytes = table.prepared_row_bytes(kind, op.k);
      if (!prepared.count(op.k)) {
        prepared[op.k] = {kind, most, op.k, row_bytes, memory_.take(most * row_bytes)};
        own[op.k] = memory_.take(kOwnRows * row_bytes * threads);
        inputs_[op.k] = {floats(most * stride(op.k)), op.k, stride(op.k)};
        for (int64_t i = 0; i < most * stride(op.k); i++) inputs_[op.k].data[i] = float((i * 7919) % 1000) - 500.0f;
        for (int r = 0; r < most; r++)  // without `prepares` the rows must hold something sane
          table.prepare_row(kind, inputs_[op.k].row(r), op.k, const_cast<uint8_t*>(prepared[op.k].data) + r * row_bytes);
      }
      std::vector<Projection> projections;
      for (size_t i = 0; i < op.weights.size(); i++) {
        Rows& out = outs_[{op.weights[i].n, i}];
        int n = op.weights[i].n, rows = is_head ? std::min(most, kHeadRows) : most;
        if (!out.data) out = {floats(rows * stride(n)), n, stride(n)};
        projections.push_back({op.weights[i], nullptr, out});
      }
      auto linear = std::make_unique<LinearOp>(table, threads, prepared[op.k], projections, false);
      if (prepares) {
        RowsOp::Args args{RowFunction::copy, inputs_[op.k], {}, {}, false, 1.0f, {}, prepared[op.k], scratch};
        linear->prepare_with(std::make_unique<RowsOp>(table, threads, args), own[op.k], kOwnRows);
      }
      if (!ops_.empty()) ops_.back()->set_next(linear.get());
      (is_head ? head_ : ops_).push_back(std::move(linear));
    }
  }

  double step(int rows) {
    double start = now();
    Step step{};
    step.tokens_count = rows;
    stages_.clear();
    for (auto& op : ops_) op->stage(step, stages_);
    pool_.run(stages_.stages());
    // The head works on at most 64 rows at a time, as the plan does, so that full logits never exist.
    for (int row = 0; row < rows; row += kHeadRows) {
      step.tokens_count = std::min(kHeadRows, rows - row);
      stages_.clear();
      for (auto& op : head_) op->stage(step, stages_);
      pool_.run(stages_.stages());
    }
    return now() - start;
  }

 private:
  static constexpr int kOwnRows = 8, kHeadRows = 64, kWidest = 4096;

  // One thread is timed by its own CPU clock, which holds on a busy machine; several need the wall clock and quiet.
  double now() const {
    timespec t;
    clock_gettime(pool_.threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }

  ThreadPool pool_;
  Arena memory_;
  std::map<int, Rows> inputs_;                    // by width
  std::map<std::pair<int, size_t>, Rows> outs_;  // by width and place in the group
  std::vector<std::unique_ptr<LinearOp>> ops_, head_;
  StageList stages_;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--level") o.level = value;
    else if (flag == "--format") o.format = value;
    else if (flag == "--head") o.head = value;
    else if (flag == "--activations") o.activations = value;
    else if (flag == "--threads") o.threads = std::atoi(value.c_str());
    else if (flag == "--repeat") o.repeat = std::atoi(value.c_str());
    else if (flag == "--prepare") o.prepare = std::atoi(value.c_str());
    else if (flag == "--hidden") o.hidden = std::atoi(value.c_str());
    else if (flag == "--layers") o.layers = std::atoi(value.c_str());
    else if (flag == "--rows") o.rows.push_back(std::atoi(value.c_str()));
    else std::fprintf(stderr, "unknown flag %s\n", flag.c_str()), std::exit(2);
  }
  if (o.rows.empty()) o.rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  Options o = parse(argc, argv);
  const char* error = nullptr;
  const KernelTable* table = find_level(o.level.empty() ? nullptr : o.level.c_str(), &error);
  if (!table) return std::fprintf(stderr, "%s\n", error), 2;
  ActivationKind kind = o.activations == "f32"    ? ActivationKind::f32
                        : o.activations == "bf16" ? ActivationKind::bf16
                                                  : ActivationKind::int8;
  const StoredFormat& format = format_named(o.format);
  int blocks = o.head == "none" ? format.block_elements
                                : std::max(format.block_elements, format_named(o.head).block_elements);
  int hidden = o.hidden ? o.hidden : blocks > 32 ? 512 : 576;
  if (hidden % 16 || hidden % blocks) return std::fprintf(stderr, "--hidden does not divide into blocks\n"), 2;
  std::vector<Group> ops;
  Mapping mapping(int64_t(1) << 32);  // touched only where weights are written
  uint8_t* memory = mapping.data();
  auto add = [&](const StoredFormat& f, int k, std::vector<int> ns) {
    Group op{k, {}};
    for (int n : ns) op.weights.push_back(random_weight(*table, f, kind, n, k, &memory));
    ops.push_back(op);
  };
  for (int layer = 0; layer < o.layers; layer++) {
    add(format, hidden, {hidden, 192, 192});
    add(format, hidden, {hidden});
    add(format, hidden, {1536, 1536});
    add(format, 1536, {hidden});
  }
  if (o.head != "none") add(format_named(o.head), hidden, {49152});
  double bytes = 0, operations = 0;
  for (const Group& op : ops)
    for (const PackedWeight& w : op.weights) {
      bytes += double(w.n / 16) * double(w.tile_bytes);
      operations += 2.0 * w.n * w.k;
    }
  int most = *std::max_element(o.rows.begin(), o.rows.end());
  Bench bench(*table, kind, ops, o.threads, most, o.prepare != 0);

  std::printf("%s, %s with head %s, %s activations, %d threads, %.1f MB of weights\n", table->level, format.name,
              o.head.c_str(), o.activations.c_str(), o.threads, bytes / 1e6);
  std::printf("%6s %12s %12s %10s %10s\n", "rows", "best tok/s", "median", "GB/s", "GOP/s");
  for (int rows : o.rows) {
    int count = std::max(o.repeat, std::min(o.repeat * 10, o.repeat * 64 / rows));
    std::vector<double> times;
    for (int i = 0; i < count; i++) times.push_back(bench.step(rows));
    std::sort(times.begin(), times.end());
    double best = times[0], median = times[times.size() / 2];
    std::printf("%6d %12.0f %12.0f %10.1f %10.0f\n", rows, rows / best, rows / median, bytes / best / 1e9,
                operations * rows / best / 1e9);
    std::fflush(stdout);
  }
}
