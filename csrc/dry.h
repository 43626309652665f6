// "Don't repeat yourself": penalties for tokens that would go on with a repetition of what the sequence has said.
//
// The rule and its source are in backends/reference/dry.py. A draw costs time linear in the window (Gusfield's Z
// algorithm, 1997), and only for sequences that ask for it.
#pragma once
#include <cstdint>
#include <vector>

#include "token_sequences.h"

namespace octavo {

struct DrySettings {
  float multiplier = 0.0f;      // 0: off
  float base = 1.75f;
  int32_t allowed_length = 2;   // at least 1
  int32_t last_n = -1;          // tokens looked back on; -1: all
  TokenSequences breakers;
};

class Dry {
 public:
  Dry() = default;
  explicit Dry(DrySettings settings);

  bool is_on() const { return settings_.multiplier > 0.0f && settings_.last_n != 0; }
  // `history` has just grown by its last token.
  void grown(const std::vector<int32_t>& history);
  // Computes `ids` (ascending) and `penalties` of the tokens that may follow `history`.
  void look_back(const std::vector<int32_t>& history);

  std::vector<int32_t> ids;
  std::vector<float> penalties;

 private:
  struct Repeat {
    int32_t token, length;
  };
  bool is_breaker(int32_t token) const;
  float penalty(int32_t length) const;

  DrySettings settings_;
  int32_t since_break_ = 0;  // tokens after the last breaker
  std::vector<int32_t> matches_;
  std::vector<Repeat> repeats_;
};

}  // namespace octavo
