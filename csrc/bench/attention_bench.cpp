// Attention of SmolLM2-135M (30 layers, 9 query heads, 3 kv heads of 64), or of other heads, as a step runs it: items
// planned once, claimed by the pool's threads in every layer, merges after a barrier. Pages are scattered over the pool at
// random.
//
//   attention_bench [--level NAME] [--heads LAYERS:QUERY_HEADS:KV_HEADS:HEAD_DIM] [--kv f32|bf16|f16|int8]...
//                   [--page-size N]... [--threads N] [--repeat N] [--load SEQUENCES:CONTEXT:QUERIES[:COMMON]]...
//
// COMMON tokens at the start lie in the same pages for all sequences. Prints, for the best and the median step,
// milliseconds, KV bytes per second (each byte of each page counted once, however often it is read) and
// multiply-adds (2 operations) of visible keys per second; "cpu" is the process's own time, which other load on the
// machine disturbs less; "plan" is what planning the step took.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "kv.h"
#include "memory.h"
#include "pool.h"

namespace {

using namespace octavo;

struct Heads {
  int layers = 30, query = 9, kv = 3, dim = 64;
};

struct Load {
  int sequences, context, queries, common;
};

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

uint32_t next_random(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

// A step of one load: its arrays, pages and plan.
struct Step {
  const KernelTable& kernels;
  Heads heads;
  KvMemory memory;
  Arena arena;
  std::vector<int32_t> query_start{0}, context_len, block_table;
  std::vector<float> q, out, partials;
  int threads;
  AttentionPlan plan;
  AttentionArgs args{};
  uint8_t* scratch;
  int64_t scratch_stride;
  std::vector<Stage> stages;
  struct Layer {
    Step* step;
    AttentionArgs args;
  };
  std::vector<Layer> layers;

  Step(const KernelTable& table, const Heads& shape, KvType type, int page_size, int thread_count, const Load& load)
      : kernels(table),
        heads(shape),
        memory({{type, heads.layers, heads.kv, heads.dim}}, load.sequences * ((load.context + page_size - 1) / page_size),
               page_size),
        threads(thread_count),
        plan(memory.layout(0), heads.query, 0, thread_count, 1 << 18) {
    int blocks = (load.context + page_size - 1) / page_size;
    uint32_t state = 1;
    for (int i = 0; i < load.sequences * blocks; i++) block_table.push_back(i);
    for (size_t i = block_table.size(); i > 1; i--) std::swap(block_table[i - 1], block_table[next_random(&state) % i]);
    for (int s = 1; s < load.sequences; s++)  // the others' first pages are the first one's
      std::copy_n(block_table.begin(), load.common / page_size, block_table.begin() + s * blocks);
    // All types read this as numbers of about the same size: 0x3f.. and 0xbf.. in the upper bytes. Scales are positive.
    uint32_t varied = memory.layout(0).layer_scale_bytes ? 0x00ff : 0x80ff;
    uint16_t* halves = (uint16_t*)memory.layout(0).base;
    for (int64_t i = 0; i < memory.bytes() / 2; i++) halves[i] = uint16_t(0x3f00 | (next_random(&state) & varied));
    for (int s = 0; s < load.sequences; s++) {
      query_start.push_back(query_start.back() + load.queries);
      context_len.push_back(load.context);
    }
    int width = heads.query * heads.dim;
    q.resize(size_t(query_start.back()) * width);
    for (float& x : q) x = float(next_random(&state) % 2001) * 1e-3f - 1.0f;
    out.resize(q.size());
    args.block_stride = blocks;
    build();
    partials.resize(size_t(plan.partial_rows()) * (heads.dim + 2));
    scratch_stride = (kernels.attention_scratch_bytes(memory.layout(0), heads.query) + 63) / 64 * 64;
    scratch = arena.take(scratch_stride * threads);
    args = {memory.layout(0), 0, heads.query, 0.125f, 0.0f, 0, nullptr, q.data(), out.data(), width, width,
            query_start.data(), context_len.data(), block_table.data(), blocks, plan.rows().data(), partials.data()};
    for (int layer = 0; layer < heads.layers; layer++) {
      args.layer = layer;
      layers.push_back({this, args});
    }
    for (Layer& layer : layers) {
      stages.push_back({[](void* self, int32_t item, int32_t thread) noexcept {
                          Layer& l = *(Layer*)self;
                          const std::vector<AttentionItem>& items = l.step->plan.items();
                          size_t next = size_t(item + l.step->threads);
                          l.step->kernels.attention(l.args, items[size_t(item)], next < items.size() ? &items[next] : nullptr,
                                                    l.step->scratch + thread * l.step->scratch_stride);
                        },
                        &layer, int32_t(plan.items().size())});
      stages.push_back({[](void* self, int32_t item, int32_t) noexcept {
                          Layer& l = *(Layer*)self;
                          l.step->kernels.attention_merge(l.args, l.step->plan.merges()[size_t(item)]);
                        },
                        &layer, int32_t(plan.merges().size())});
    }
  }

  void build() {
    plan.build(query_start.data(), context_len.data(), block_table.data(), args.block_stride, int32_t(context_len.size()));
  }
};

// Microseconds to plan this step, the best of several times.
double plan_us(Step* step) {
  double best = 1e9;
  for (int i = 0; i < 20; i++) {
    double start = seconds(CLOCK_MONOTONIC);
    step->build();
    best = std::min(best, seconds(CLOCK_MONOTONIC) - start);
  }
  return best * 1e6;
}

void measure(const KernelTable& kernels, const Heads& heads, KvType type, int page_size, int threads, int repeat,
             const Load& load) {
  Step step(kernels, heads, type, page_size, threads, load);
  ThreadPool pool(threads);
  const KvLayout& kv = step.memory.layout(0);
  double bytes = double(heads.layers) * double(kv.layer_bytes + kv.layer_scale_bytes) / page_size *
                 (load.sequences * (load.context - load.common) + load.common);
  double visible = 0;  // (query row, key) pairs
  for (int query = 0; query < load.queries; query++) visible += load.context - load.queries + query + 1;
  double operations = visible * load.sequences * heads.layers * heads.query * heads.dim * 4;
  std::vector<double> wall, cpu;
  for (int i = 0; i < repeat; i++) {
    double wall_start = seconds(CLOCK_MONOTONIC), cpu_start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    pool.run(step.stages);
    wall.push_back(seconds(CLOCK_MONOTONIC) - wall_start);
    cpu.push_back(seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_start);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(cpu.begin(), cpu.end());
  double best = wall[0], median = wall[wall.size() / 2];
  std::printf("%-11s %-4s page %2d  %3d x %4d (%4d new, %4d common)  items %3zu  best %8.2f ms %6.1f GB/s %6.1f GFLOP/s"
              "   median %8.2f ms %6.1f GB/s %6.1f GFLOP/s   cpu %8.2f ms  plan %5.1f us\n",
              kernels.level, kKvTypes[int(type)].name, page_size, load.sequences, load.context, load.queries,
              load.common, step.plan.items().size(), best * 1e3, bytes / best * 1e-9, operations / best * 1e-9, median * 1e3,
              bytes / median * 1e-9, operations / median * 1e-9, cpu[0] * 1e3, plan_us(&step));
  std::fflush(stdout);
}

}  // namespace

// Throws std::invalid_argument for another name.
KvType type_of(const std::string& name) {
  for (int i = 0; i < kKvTypeCount; i++)
    if (name == kKvTypes[i].name) return KvType(i);
  throw std::invalid_argument(name);
}

int main(int argc, char** argv) {
  std::string level;
  Heads heads;
  std::vector<KvType> types;
  int threads = 2, repeat = 9;
  std::vector<int> page_sizes;
  std::vector<Load> loads;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string option = argv[i], value = argv[i + 1];
    Load load{};
    if (option == "--level") level = value;
    else if (option == "--heads" &&
             std::sscanf(value.c_str(), "%d:%d:%d:%d", &heads.layers, &heads.query, &heads.kv, &heads.dim) == 4) continue;
    else if (option == "--kv") types.push_back(type_of(value));
    else if (option == "--page-size") page_sizes.push_back(std::stoi(value));
    else if (option == "--threads") threads = std::stoi(value);
    else if (option == "--repeat") repeat = std::stoi(value);
    else if (option == "--load" && std::sscanf(value.c_str(), "%d:%d:%d:%d", &load.sequences, &load.context,
                                               &load.queries, &load.common) >= 3)
      loads.push_back(load);
    else {
      std::fprintf(stderr, "%s %s: unknown option or value\n", option.c_str(), value.c_str());
      return 2;
    }
  }
  if (types.empty()) types = {KvType::bf16};
  if (page_sizes.empty()) page_sizes = {4, 8, 16, 32};
  if (loads.empty()) loads = {{32, 250, 1, 0}, {1, 4000, 1, 0}, {16, 1072, 1, 1024}, {1, 2048, 2048, 0}, {1, 2048, 256, 0}};
  const char* error = nullptr;
  const KernelTable* kernels = find_level(level.empty() ? nullptr : level.c_str(), &error);
  if (!kernels) {
    std::fprintf(stderr, "level %s: %s\n", level.c_str(), error);
    return 2;
  }
  for (const Load& load : loads)
    for (int page_size : page_sizes)
      for (KvType type : types) measure(*kernels, heads, type, page_size, threads, repeat, load);
}
