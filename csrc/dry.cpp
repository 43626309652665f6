#include "dry.h"

#include <cfloat>
#include <cmath>

namespace octavo {

Dry::Dry(DrySettings settings) : settings_(std::move(settings)) {
  std::sort(settings_.breakers.singles.begin(), settings_.breakers.singles.end());
}

bool Dry::is_breaker(int32_t token) const {
  const std::vector<int32_t>& singles = settings_.breakers.singles;
  return std::binary_search(singles.begin(), singles.end(), token);
}

void Dry::grown(const std::vector<int32_t>& history) {
  bool breaks = is_breaker(history.back());
  for (const std::vector<int32_t>& sequence : settings_.breakers.longer)
    breaks = breaks || ends_with(history, sequence, sequence.size());
  since_break_ = breaks ? 0 : since_break_ + 1;
}

float Dry::penalty(int32_t length) const {
  double value = double(settings_.multiplier) * std::pow(double(settings_.base), double(length - settings_.allowed_length));
  return value < double(FLT_MAX) ? float(value) : FLT_MAX;
}

void Dry::look_back(const std::vector<int32_t>& history) {
  ids.clear();
  penalties.clear();
  repeats_.clear();
  if (since_break_ < settings_.allowed_length) return;
  int32_t n = int32_t(history.size());
  if (settings_.last_n >= 0) n = std::min(n, settings_.last_n);
  const int32_t* last = history.data() + history.size() - 1;  // last[-i]: i tokens before the end
  matches_.assign(size_t(n), 0);
  // matches_[i]: how many tokens up to last[-i] equal those up to last[0]. [left, right) is the match that reaches
  // furthest back so far.
  for (int32_t i = 1, left = 0, right = 0; i < n; i++) {
    int32_t length = i < right ? std::min(right - i, matches_[size_t(i - left)]) : 0;
    while (i + length < n && last[-(i + length)] == last[-length]) length++;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
    matches_[size_t(i)] = length;
    int32_t repeat = std::min(length, since_break_);
    if (repeat >= settings_.allowed_length && !is_breaker(last[1 - i])) repeats_.push_back({last[1 - i], repeat});
  }
  std::sort(repeats_.begin(), repeats_.end(), [](Repeat a, Repeat b) {
    return a.token != b.token ? a.token < b.token : a.length > b.length;
  });
  for (const Repeat& repeat : repeats_) {
    if (!ids.empty() && ids.back() == repeat.token) continue;  // its longest one came first
    ids.push_back(repeat.token);
    penalties.push_back(penalty(repeat.length));
  }
}

}  // namespace octavo
