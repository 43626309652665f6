// The thread pool: every item once, stages in order, late threads harmless, no CPU while parked.
#include "pool.h"

#include <time.h>

#include <chrono>
#include <stdexcept>

#include "check.h"

namespace {

using octavo::Stage;
using octavo::ThreadPool;

// Each item adds to its own cell, and checks that nobody has been there before.
struct Ladder {
  std::vector<int64_t> cells;
  int64_t expected_before, add;
  std::atomic<int>* violations;
};

void climb(void* context, int32_t item, int32_t) noexcept {
  Ladder& ladder = *static_cast<Ladder*>(context);
  if (ladder.cells[size_t(item)] != ladder.expected_before) ladder.violations->fetch_add(1);
  ladder.cells[size_t(item)] += ladder.add;
}

struct Shifted {
  const std::vector<int64_t>* from;
  std::vector<int64_t>* to;
};

// to[i] = from[i + 1] + 1: wrong as soon as a stage starts before the one before it has ended everywhere.
void shift(void* context, int32_t item, int32_t) noexcept {
  Shifted& s = *static_cast<Shifted*>(context);
  (*s.to)[size_t(item)] = (*s.from)[(size_t(item) + 1) % s.from->size()] + 1;
}

void test_every_item_once(int threads) {
  ThreadPool pool(threads);
  CHECK(pool.threads() == threads);
  std::atomic<int> violations{0};
  for (int items : {0, 1, 2, 7, 1000, 70000, 1000000}) {
    Ladder ladder{std::vector<int64_t>(size_t(items) + 1), 0, 5, &violations};
    Stage stage{climb, &ladder, items};
    pool.run({&stage, 1});
    for (int i = 0; i < items; i++) CHECK(ladder.cells[size_t(i)] == 5);
    CHECK(ladder.cells[size_t(items)] == 0);
  }
  CHECK(violations == 0);
}

void test_stages_in_order(int threads, int stages, int items) {
  ThreadPool pool(threads);
  std::vector<int64_t> a(size_t(items), 0), b(size_t(items), 0);
  Shifted even{&a, &b}, odd{&b, &a};
  std::vector<Stage> list;
  uint8_t ahead[3000] = {};  // what is fetched ahead changes nothing
  for (int i = 0; i < stages; i++)
    list.push_back({shift, i % 2 ? (void*)&odd : (void*)&even, items, ahead, int64_t(sizeof ahead)});
  for (int round = 1; round <= 3; round++) {
    pool.run(list);
    if (stages % 2) std::swap(a, b);
    for (int64_t value : a) CHECK(value == int64_t(round) * stages);
  }
}

// Many short runs of changing lengths: a thread that oversleeps one must not touch the next.
void test_late_threads(int threads) {
  ThreadPool pool(threads);
  std::atomic<int> violations{0};
  for (int run = 0; run < 3000; run++) {
    int stages = 1 + run % 5;
    std::vector<Ladder> ladders(static_cast<size_t>(stages));
    std::vector<Stage> list;
    for (int i = 0; i < stages; i++) {
      int items = (run * 7 + i) % 4;
      ladders[size_t(i)] = {std::vector<int64_t>(size_t(items) + 1, run), run, 1, &violations};
      list.push_back({climb, &ladders[size_t(i)], items});
    }
    pool.run(list);
    for (int i = 0; i < stages; i++)
      for (int32_t j = 0; j < list[size_t(i)].items; j++) CHECK(ladders[size_t(i)].cells[size_t(j)] == run + 1);
  }
  CHECK(violations == 0);
}

void sleep_once(void* context, int32_t, int32_t thread) noexcept {
  static_cast<std::atomic<int>*>(context)[thread].fetch_add(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void test_thread_numbers(int threads) {
  ThreadPool pool(threads);
  std::vector<std::atomic<int>> counts(static_cast<size_t>(threads));
  Stage stage{sleep_once, counts.data(), 40};
  octavo::StageTime time{};
  pool.run({&stage, 1}, &time);
  int total = 0;
  for (auto& count : counts) total += count;
  CHECK(total == 40);
  CHECK(time.total_ns >= 1000000 && time.wait_ns >= 0 && time.wait_ns <= time.total_ns);
}

void test_concurrent_callers() {
  ThreadPool pool(2);
  std::atomic<int> violations{0};
  auto call = [&] {
    for (int i = 0; i < 200; i++) {
      Ladder ladder{std::vector<int64_t>(17), 0, 1, &violations};
      Stage stage{climb, &ladder, 16};
      pool.run({&stage, 1});
      for (int j = 0; j < 16; j++) CHECK(ladder.cells[size_t(j)] == 1);
    }
  };
  std::thread other(call);
  call();
  other.join();
  CHECK(violations == 0);
}

void test_refusals() {
  for (int threads : {0, -1}) {
    bool thrown = false;
    try {
      ThreadPool pool(threads);
    } catch (const std::invalid_argument&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

void test_parked_threads_use_no_cpu() {
  ThreadPool pool(8);
  std::atomic<int> violations{0};
  Ladder ladder{std::vector<int64_t>(9), 0, 1, &violations};
  Stage stage{climb, &ladder, 8};
  pool.run({&stage, 1});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_seconds() - before < 0.01);
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 8}) {
    test_every_item_once(threads);
    test_stages_in_order(threads, 40, 13);
    test_stages_in_order(threads, 41, 13);
    test_stages_in_order(threads, 2500, 3);  // longer than the pool's slots
    test_late_threads(threads);
    test_thread_numbers(threads);
  }
  test_concurrent_callers();
  test_refusals();
  test_parked_threads_use_no_cpu();
  std::puts("pool_test: ok");
}
