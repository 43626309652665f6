// Linear layers on every level this machine runs: against a double-precision reference, and bit for bit against
// themselves however the work is cut. Built with ASan and UBSan, so that reads past a row, tile or bias are found.
#include "linear_cases.h"

namespace {

using namespace octavo_test;

int failures = 0;

template <typename... Args>
void expect(bool ok, const char* format, Args... args) {
  if (ok) return;
  if (++failures <= 20) std::printf(format, args...), std::printf("\n");
}

struct Case {
  const KernelTable& table;
  const Matrix& matrix;
  ActivationKind kind;
  int rows;
};

void report(const Case& c, const char* what) {
  expect(false, "%s: %s x %s, n %d, k %d, rows %d: %s", c.table.level, c.matrix.format.name,
         kActivationNames[int(c.kind)], c.matrix.n, c.matrix.k, c.rows, what);
}

std::vector<float> run(const Case& c, const PackedWeight& weight, const PreparedRows& rows, const float* bias,
                       const std::vector<float>* onto) {
  std::vector<float> out(onto ? *onto : std::vector<float>(size_t(c.rows) * c.matrix.n));
  LinearArgs args{&weight, rows, bias, out.data(), c.matrix.n, onto != nullptr};
  c.table.linear(args, 0, (c.matrix.n + 15) / 16, 0, c.rows);
  return out;
}

// Activations of mixed size; `whole` makes them integers that int8 holds exactly (each group has a 127).
std::vector<float> activations(int rows, int k, bool whole, Random& random) {
  std::vector<float> x(size_t(rows) * k);
  for (size_t i = 0; i < x.size(); i++) {
    if (whole) x[i] = i % 32 == 7 ? 127.0f : float(random.below(255) - 127);
    else x[i] = random.uniform() * (random.below(64) ? 1.0f : 30.0f);
  }
  return x;
}

// How far one output may be from the exact value. Rounding: at most k + 8 roundings of a running sum that never exceeds
// the sum of magnitudes (in int8 the minimum term may be as large as 15 d |x|, hence `spread`). Quantising: each
// activation moves by at most one step, which is at most its group's largest magnitude / 63.5.
struct Expected {
  double value, bound;
};

// The greatest magnitude in each group of 32 of each row of `values` [rows][k].
template <class T>
std::vector<double> group_magnitudes(const std::vector<T>& values, int rows, int k) {
  int groups = (k + 31) / 32;
  std::vector<double> greatest(size_t(rows) * groups);
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < k; i++) {
      double& group = greatest[size_t(r) * groups + i / 32];
      group = std::fmax(group, std::fabs(double(values[size_t(r) * k + i])));
    }
  return greatest;
}

class Reference {
 public:
  Reference(const Case& c, const std::vector<float>& x, bool exact_activations)
      : c_(c), x_(x), exact_(exact_activations), groups_((c.matrix.k + 31) / 32),
        spreads_(group_magnitudes(c.matrix.values, c.matrix.n, c.matrix.k)),
        amaxes_(group_magnitudes(x, c.rows, c.matrix.k)) {}

  Expected at(int row, int column) const {
    double sum = 0, magnitude = 0, moved = 0;
    int k = c_.matrix.k;
    for (int i = 0; i < k; i++) {
      double w = c_.matrix.values[size_t(column) * k + i], a = activation(x_[size_t(row) * k + i]), spread = 0;
      sum += w * a;
      if (c_.kind == ActivationKind::int8) {
        spread = spreads_[size_t(column) * groups_ + i / 32];
        if (!exact_) moved += std::fabs(w) * amaxes_[size_t(row) * groups_ + i / 32] / 127;
      }
      magnitude += std::fabs(a) * std::fmax(std::fabs(w), spread * 4);
    }
    return {sum, moved + magnitude * (k + 8) * 0x1p-24 + 1e-30};
  }

 private:
  double activation(float x) const {
    if (c_.kind != ActivationKind::bf16 && c_.kind != ActivationKind::bf16_as_f32) return double(x);
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return bf16_value(uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16));  // to nearest even
  }

  const Case& c_;
  const std::vector<float>& x_;
  bool exact_;
  int groups_;
  std::vector<double> spreads_, amaxes_;
};

void check_values(const Case& c, bool whole, Random& random) {
  int n = c.matrix.n, k = c.matrix.k;
  std::vector<float> x = activations(c.rows, k, whole, random);
  Packed packed(c.table, c.matrix, c.kind);
  Prepared prepared(c.table, c.kind, x, c.rows, k);
  std::vector<float> plain = run(c, packed.weight, prepared.rows, nullptr, nullptr);
  Reference reference(c, x, whole);
  for (int r = 0; r < c.rows; r++)
    for (int column = 0; column < n; column++) {
      Expected e = reference.at(r, column);
      double got = double(plain[size_t(r) * n + column]);
      if (!(std::fabs(got - e.value) <= e.bound)) return report(c, whole ? "wrong value (exact)" : "wrong value");
    }
  // The epilogue is (acc + bias), then out + that.
  std::vector<float> bias = activations(1, n, false, random), onto = activations(c.rows, n, false, random);
  std::vector<float> full = run(c, packed.weight, prepared.rows, bias.data(), &onto);
  for (size_t i = 0; i < full.size(); i++) {
    volatile float biased = plain[i] + bias[i % size_t(n)];
    if (full[i] != onto[i] + biased) return report(c, "wrong bias or accumulation");
  }
}

// Every row alone, and every cut of rows and tiles, gives the bits of the whole.
void check_invariance(const Case& c, Random& random) {
  int n = c.matrix.n, k = c.matrix.k, tiles = (n + 15) / 16;
  std::vector<float> x = activations(c.rows, k, false, random);
  Packed packed(c.table, c.matrix, c.kind);
  Prepared prepared(c.table, c.kind, x, c.rows, k);
  std::vector<float> whole = run(c, packed.weight, prepared.rows, nullptr, nullptr), cut(whole.size());
  LinearArgs args{&packed.weight, prepared.rows, nullptr, cut.data(), n, false};
  for (int way = 0; way < 4; way++) {
    std::memset(cut.data(), 0xff, cut.size() * 4);
    if (way == 3) {  // what is fetched ahead changes nothing
      args.fetch_end = packed.weight.tiles + random.below(tiles + 1) * packed.weight.tile_bytes;
      args.fetch_next = packed.weight.tiles;
    }
    for (int r = 0; r < c.rows;) {
      int r_end = way == 0 ? r + 1 : std::min(c.rows, r + 1 + random.below(c.rows));
      for (int t = 0; t < tiles;) {
        int t_end = way == 1 ? tiles : std::min(tiles, t + 1 + random.below(tiles));
        c.table.linear(args, t, t_end, r, r_end);
        t = t_end;
      }
      r = r_end;
    }
    if (std::memcmp(cut.data(), whole.data(), cut.size() * 4) != 0) return report(c, "cutting the work changes bits");
  }
}

void check_gather(const KernelTable& table, const Matrix& m, ActivationKind kind, Random& random) {
  std::vector<int32_t> index(size_t(m.n));
  for (int i = 0; i < m.n; i++) index[size_t(i)] = random.below(m.n);
  Packed packed(table, m, kind, index.data());
  for (int i = 0; i < m.n; i++) {
    std::vector<float> row(size_t(m.k));
    table.gather_row(packed.weight, i, 3.0f, row.data());
    for (int j = 0; j < m.k; j++) {
      float value = float(m.values[size_t(index[size_t(i)]) * m.k + j]);
      if (row[size_t(j)] != 3.0f * value) return report({table, m, kind, 0}, "gather_row differs from the file's row");
    }
  }
}

// MXFP4's scales are all powers of two that f32 has, and two that it has as subnormal numbers only.
void check_powers_of_two(const KernelTable& table, ActivationKind kind) {
  constexpr WeightFormat format = WeightFormat::mxfp4;
  constexpr int n = 255, row_bytes = 17;
  std::vector<uint8_t> rows(n * row_bytes);
  for (int e = 0; e < n; e++) {
    rows[size_t(e * row_bytes)] = uint8_t(e);
    for (int j = 0; j < 16; j++) rows[size_t(e * row_bytes + 1 + j)] = uint8_t(j | (15 - j) << 4);
  }
  int64_t tile_bytes = table.packed_tile_bytes(format, kind, 32);
  Buffer tiles((n + 15) / 16 * tile_bytes);
  for (int t = 0; t < (n + 15) / 16; t++)
    table.pack_tile(format, kind, rows.data(), row_bytes, nullptr, n, 32, t, tiles.data.get() + t * tile_bytes);
  PackedWeight weight{format, kind, n, 32, tile_bytes, tiles.data.get()};
  for (int e = 0; e < n; e++) {
    double expected[32];
    float row[32];
    block_values(format, &rows[size_t(e * row_bytes)], expected);
    table.gather_row(weight, e, 1.0f, row);
    for (int i = 0; i < 32; i++)
      expect(double(row[i]) == expected[i], "%s: mxfp4, scale %d, code %d: %g", table.level, e, i, double(row[i]));
  }
}

// NaN and infinity in an activation must not come out as ordinary numbers, and huge or tiny ones not as NaN.
void check_extremes(const KernelTable& table, const Matrix& m, ActivationKind kind) {
  Case c{table, m, kind, 1};
  Packed packed(table, m, kind);
  for (float extreme : {NAN, INFINITY, 1e30f, 1e-40f, 0.0f}) {
    std::vector<float> x(size_t(m.k), extreme == extreme && extreme < 1e31f ? extreme : 1.0f);
    x[size_t(m.k / 2)] = extreme;
    Prepared prepared(table, kind, x, 1, m.k);
    std::vector<float> out = run(c, packed.weight, prepared.rows, nullptr, nullptr);
    bool finite_in = std::isfinite(extreme);
    for (float v : out)
      if (std::isfinite(v) != finite_in) return report(c, "an extreme activation is lost or spoils a finite row");
  }
}

bool exists(WeightFormat format, ActivationKind kind) {
  if (kind == ActivationKind::f32 || kind == ActivationKind::bf16_as_f32) return true;
  return kind == ActivationKind::int8 ? is_quantised(format) : format == WeightFormat::bf16;
}

void check_level(const KernelTable& table) {
  Random random{0x9E3779B97F4A7C15ULL};
  for (const StoredFormat& format : kWeightFormats)
    for (ActivationKind kind :
         {ActivationKind::f32, ActivationKind::bf16, ActivationKind::int8, ActivationKind::bf16_as_f32}) {
      if (!exists(format.format, kind)) {
        expect(table.packed_tile_bytes(format.format, kind, 512) == 0, "%s: a missing combination claims to exist",
               table.level);
        continue;
      }
      int block = format.block_elements;
      expect(block == 1 || table.packed_tile_bytes(format.format, kind, 3 * block + 16) == 0,
             "%s: %s claims to hold half a block", table.level, format.name);
      int step = kind == ActivationKind::bf16_as_f32 ? 13 : 1;  // f32's kernels
      for (int rows = 1; rows <= 40; rows += step) {
        int n = 1 + random.below(70), k = block == 1 ? 1 + random.below(100) : block * (1 + random.below(block == 32 ? 5 : 2));
        Matrix m(format, n, k, random);
        check_values({table, m, kind, rows}, false, random);
        if (kind == ActivationKind::int8) check_values({table, m, kind, rows}, true, random);
        check_invariance({table, m, kind, rows}, random);
      }
      Matrix m(format, 33, block == 1 ? 37 : std::max(block, 64), random);
      check_gather(table, m, kind, random);
      check_extremes(table, m, kind);
      if (format.format == WeightFormat::mxfp4) check_powers_of_two(table, kind);
      // Longer than any block of rows or of k that a kernel may work in.
      Matrix wide(format, 17, block == 1 ? 1501 : 1536, random);
      check_values({table, wide, kind, 5}, false, random);
      check_invariance({table, wide, kind, 150}, random);
    }
}

}  // namespace

int main() {
  const KernelTable* levels[8];
  int count = supported_levels(levels, 8);
  for (int i = 0; i < count; i++) {
    int before = failures;
    check_level(*levels[i]);
    std::printf("%s: %s\n", levels[i]->level, failures == before ? "ok" : "FAILED");
  }
  return failures != 0;
}
