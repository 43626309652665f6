#include "op_head.h"

#include <cstring>

namespace octavo {
namespace {

constexpr double kNormNs = 0.4;  // per element, for the cut only

}  // namespace

HeadOp::HeadOp(const KernelTable& kernels, int32_t threads, const Args& args, Sampler& sampler)
    : kernels_(kernels), threads_(threads), args_(args), sampler_(sampler) {}

void HeadOp::stage(const Step& step, StageList& out) {
  step_ = step;
  cut_ = RowCut(step.outputs, kNormNs * args_.x.width, threads_);
  out.add(OpKind::rows, stage_of(this, cut_.items()));
  blocks_.clear();
  for (int32_t begin = 0; begin < step.outputs; begin += kBlockRows) {
    int32_t rows = std::min(kBlockRows, step.outputs - begin);
    PreparedRows input = args_.prepared;
    input.rows = rows;
    input.data += begin * input.row_bytes;
    LinearArgs linear = {&args_.weight, input, nullptr, args_.logits.data, args_.logits.stride, false};
    blocks_.push_back({this, begin, rows, LinearCut({args_.weight}, input, rows, threads_), linear, Lanes(threads_)});
    blocks_.back().lanes.reset(blocks_.back().cut.items());
  }
  int64_t tiles = (args_.weight.n + 15) / 16;
  for (Block& block : blocks_) {
    Stage multiply = {[](void* b, int32_t, int32_t thread) noexcept {
                        static_cast<Block*>(b)->head->multiply(*static_cast<Block*>(b), thread);
                      }, &block, block.lanes.count()};
    out.add(OpKind::head, multiply, args_.weight.tiles, args_.weight.tiles + args_.weight.tile_bytes * tiles);
    Stage draw = {[](void* b, int32_t item, int32_t thread) noexcept {
                    static_cast<Block*>(b)->head->draw(*static_cast<Block*>(b), item, thread);
                  }, &block, block.rows};
    out.add(OpKind::sample, draw);
  }
}

const uint8_t* HeadOp::first_read(int32_t thread) const {
  if (blocks_.empty()) return nullptr;
  LinearCut::Piece first = blocks_.front().cut.piece(blocks_.front().lanes.begin(thread));
  return args_.weight.tiles + first.tile_begin * args_.weight.tile_bytes;
}

void HeadOp::item(int32_t item, int32_t thread) noexcept {
  float* normed = args_.norm_scratch.row(thread);
  for (int32_t r = cut_.begin(item); r < cut_.end(item); r++) {
    args_.norm.apply(kernels_, args_.x.row(step_.output_rows[r]), normed);
    kernels_.prepare_row(args_.prepared.kind, normed, args_.prepared.k,
                         const_cast<uint8_t*>(args_.prepared.data) + r * args_.prepared.row_bytes);
  }
}

void HeadOp::multiply(Block& block, int32_t thread) const noexcept {
  block.lanes.run(thread, [&](int32_t item) {
    LinearCut::Piece p = block.cut.piece(item);
    kernels_.linear(block.args, p.tile_begin, p.tile_end, p.row_begin, p.row_end);
  });
}

void HeadOp::finish_logits(float* logits) const noexcept {
  if (args_.scale == 1.0f && args_.softcap == 0.0f) return;
  kernels_.scale_and_cap(logits, args_.scale, args_.softcap, args_.weight.n);
}

// Returns how many of the most likely tokens the row was asked for, -1 for no log-probabilities at all.
int32_t HeadOp::draw_row(int32_t r, const float* logits, uint8_t* scratch, SampleOut* out) const noexcept {
  int32_t slot = step_.output_slots[r], vocab = args_.weight.n;
  out->token = step_.output_targets[r];
  if (out->token >= 0) {
    int32_t top = sampler_.prompt_logprobs(slot);
    if (top >= 0) kernels_.score(logits, vocab, top, scratch, out);
    return top;
  }
  uint64_t position = uint64_t(step_.positions[step_.output_rows[r]]) + 1;
  kernels_.sample(logits, vocab, sampler_.row(slot, position), scratch, out);
  return sampler_.logprobs(slot);
}

void HeadOp::draw(const Block& block, int32_t item, int32_t thread) const noexcept {
  int32_t r = block.begin + item, vocab = args_.weight.n;
  float* logits = args_.logits.row(item);
  finish_logits(logits);
  if (results_.logits)
    std::memcpy(results_.logits + int64_t(r) * vocab, logits, sizeof(float) * size_t(vocab));
  SampleOut out{};
  out.top_ids = results_.top_ids + r * results_.top_stride;
  out.top_logprobs = results_.top_logprobs + r * results_.top_stride;
  int32_t top = draw_row(r, logits, args_.sample_scratch + thread * args_.sample_scratch_stride, &out);
  results_.tokens[r] = out.token;
  results_.logprobs[r] = out.logprob;
  for (int64_t i = std::max(top, 0); i < results_.top_stride; i++) {
    out.top_ids[i] = -1;
    out.top_logprobs[i] = 0.0f;
  }
}

}  // namespace octavo
