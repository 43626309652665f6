// The linear layers and head of SmolLM2-135M (30 layers of q, k, v, o, gate, up, down, then the tied head) as one decode
// or prefill step runs them: activations prepared once per input, tiles claimed by two threads, a barrier after each
// op. Weights are random, each layer has its own memory, and so a step reads as much as the real model's.
//
//   linear_bench [--level NAME] [--format q4_1|...] [--head q8_0|...|none] [--activations int8|f32|bf16]
//                [--threads N] [--rows N]... [--repeat N] [--layers N] [--prepare 0]
//
// Prints the best and the median step, as tokens/s, weight bytes/s and multiply-adds (2 operations) /s.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels.h"

namespace {

using namespace octavo;

struct Options {
  std::string level, format = "q4_1", head = "q8_0", activations = "int8";
  int threads = 2, repeat = 5, layers = 30, prepare = 1;
  std::vector<int> rows;
};

struct Named {
  const char* name;
  WeightFormat format;
  int block_bytes;  // of 32 elements
};
constexpr Named kFormats[] = {{"f32", WeightFormat::f32, 128}, {"f16", WeightFormat::f16, 64},
                              {"bf16", WeightFormat::bf16, 64}, {"q8_0", WeightFormat::q8_0, 34},
                              {"q4_0", WeightFormat::q4_0, 18}, {"q4_1", WeightFormat::q4_1, 20}};

const Named& format_named(const std::string& name) {
  for (const Named& f : kFormats)
    if (name == f.name) return f;
  std::fprintf(stderr, "unknown format %s\n", name.c_str());
  std::exit(2);
}

// Zeroed memory on huge pages where the system gives them.
uint8_t* allocate(size_t bytes) {
  size_t huge = size_t(2) << 20, rounded = (bytes + huge - 1) / huge * huge + huge;
  void* p = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  uint8_t* aligned = (uint8_t*)((uintptr_t(p) + huge - 1) / huge * huge);
  madvise(aligned, rounded - huge, MADV_HUGEPAGE);
  return aligned;
}

// One op: matrices that share an input.
struct Op {
  int k;
  std::vector<PackedWeight> weights;
};

// Weights lie one behind the other in the order of their use, as a model's do.
PackedWeight random_weight(const KernelTable& table, const Named& format, ActivationKind kind, int n, int k,
                           uint8_t** memory) {
  static uint64_t state = 88172645463325252ULL;
  int64_t row_bytes = int64_t(k) / 32 * format.block_bytes, tile_bytes = table.packed_tile_bytes(format.format, kind, k);
  std::vector<uint8_t> rows(size_t(16 * row_bytes));
  for (uint8_t& b : rows) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    b = uint8_t(state & 0x2f);  // no exponent that makes a NaN in any format
  }
  uint8_t* tiles = *memory;
  *memory += n / 16 * tile_bytes;
  table.pack_tile(format.format, kind, rows.data(), row_bytes, nullptr, 16, k, 0, tiles);
  for (int t = 1; t < n / 16; t++) std::memcpy(tiles + t * tile_bytes, tiles, size_t(tile_bytes));
  return {format.format, kind, n, k, tile_bytes, tiles};
}

struct Bench {
  const KernelTable& table;
  ActivationKind kind;
  int threads, rows;
  bool prepares;
  const std::vector<Op>& ops;
  uint8_t* prepared;
  float *input, *out;

  std::atomic<int> arrived{0}, generation{0};
  std::atomic<int> next{0};

  void barrier() {
    int mine = generation.load();
    if (arrived.fetch_add(1) + 1 == threads) {
      arrived = 0;
      next = 0;
      generation = mine + 1;
    } else {
      while (generation.load(std::memory_order_acquire) == mine) __builtin_ia32_pause();
    }
  }

  void prepare(const Op& op, int thread) {
    int64_t row_bytes = table.prepared_row_bytes(kind, op.k);
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++)
      table.prepare_row(kind, input + int64_t(r) * op.k, op.k, prepared + r * row_bytes);
    barrier();
  }

  // Outputs are [rows][n] of each matrix, one behind the other.
  void multiply(const Op& op, int row_begin, int row_end) {
    int total = 0;
    for (const PackedWeight& w : op.weights) total += w.n / 16;
    int chunk = std::max(1, std::min(64, total / 16));
    PreparedRows in{kind, rows, op.k, table.prepared_row_bytes(kind, op.k), prepared};
    for (;;) {
      int begin = next.fetch_add(chunk), end = std::min(total, begin + chunk);
      if (begin >= total) break;
      int first = 0;
      float* to = out;
      for (const PackedWeight& w : op.weights) {
        int tiles = w.n / 16, from = std::max(begin - first, 0), until = std::min(end - first, tiles);
        if (from < until) {
          LinearArgs args{&w, in, nullptr, to - int64_t(row_begin) * w.n, w.n, false};
          table.linear(args, from, until, row_begin, row_end);
        }
        first += tiles;
        to += int64_t(row_end - row_begin) * w.n;
      }
    }
    barrier();
  }

  // The head works on at most 64 rows at a time, as the plan does, so that full logits never exist.
  void run(const Op& op, int thread) {
    if (prepares) prepare(op, thread);
    int most = op.weights[0].n > 4096 ? 64 : rows;
    for (int row = 0; row < rows; row += most) multiply(op, row, std::min(rows, row + most));
  }

  // One thread is timed by its own CPU clock, which holds on a busy machine; several need the wall clock and quiet.
  double now() const {
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }

  double step() {
    double start = now();
    auto work = [this](int thread) {
      for (const Op& op : ops) run(op, thread);
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; t++) others.emplace_back(work, t);
    work(0);
    for (std::thread& t : others) t.join();
    return now() - start;
  }
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
  const Named& format = format_named(o.format);
  std::vector<Op> ops;
  uint8_t* memory = allocate(size_t(1) << 30);  // touched only where weights are written
  auto add = [&](const Named& f, int k, std::vector<int> ns) {
    Op op{k, {}};
    for (int n : ns) op.weights.push_back(random_weight(*table, f, kind, n, k, &memory));
    ops.push_back(op);
  };
  for (int layer = 0; layer < o.layers; layer++) {
    add(format, 576, {576, 192, 192});
    add(format, 576, {576});
    add(format, 576, {1536, 1536});
    add(format, 1536, {576});
  }
  if (o.head != "none") add(format_named(o.head), 576, {49152});
  double bytes = 0, operations = 0;
  for (const Op& op : ops)
    for (const PackedWeight& w : op.weights) {
      bytes += double(w.n / 16) * double(w.tile_bytes);
      operations += 2.0 * w.n * w.k;
    }
  int most = *std::max_element(o.rows.begin(), o.rows.end());
  uint8_t* prepared = allocate(size_t(most * table->prepared_row_bytes(kind, 1536)));
  float* input = (float*)allocate(size_t(most) * 1536 * 4);
  float* out = (float*)allocate(size_t(std::max(most * 3072, std::min(most, 64) * 49152)) * 4);
  for (int i = 0; i < most * 1536; i++) input[i] = float((i * 7919) % 1000) - 500.0f;

  std::printf("%s, %s with head %s, %s activations, %d threads, %.1f MB of weights\n", table->level, format.name,
              o.head.c_str(), o.activations.c_str(), o.threads, bytes / 1e6);
  if (!o.prepare)  // the rows must hold something sane
    for (int r = 0; r < most; r++)
      table->prepare_row(kind, input, 576, prepared + r * table->prepared_row_bytes(kind, 576));
  std::printf("%6s %12s %12s %10s %10s\n", "rows", "best tok/s", "median", "GB/s", "GOP/s");
  for (int rows : o.rows) {
    Bench bench{*table, kind, o.threads, rows, o.prepare != 0, ops, prepared, input, out};
    int count = std::max(o.repeat, std::min(o.repeat * 10, o.repeat * 64 / rows));
    std::vector<double> times;
    for (int i = 0; i < count; i++) times.push_back(bench.step());
    std::sort(times.begin(), times.end());
    double best = times[0], median = times[times.size() / 2];
    std::printf("%6d %12.0f %12.0f %10.1f %10.0f\n", rows, rows / best, rows / median, bytes / best / 1e9,
                operations * rows / best / 1e9);
    std::fflush(stdout);
  }
}
