// Python bindings of what turns text into tokens.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "module_text.h"
#include "scored_merges.h"
#include "unigram.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

PieceKind kind_from(int32_t value) {
  if (value < int32_t(PieceKind::kNormal) || value > int32_t(PieceKind::kByte)) return PieceKind::kNormal;
  return PieceKind(value);
}

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// They point into the list's own bytes.
std::vector<Piece> pieces_from(const nb::list& texts, const InputArray& scores, const InputArray& kinds) {
  int64_t count = int64_t(texts.size());
  const float* score = input<float>(scores, "scores", count);
  const int32_t* kind = input<int32_t>(kinds, "kinds", count);
  std::vector<Piece> pieces(static_cast<size_t>(count));
  for (size_t i = 0; i < pieces.size(); i++) pieces[i] = {view(nb::cast<nb::bytes>(texts[i])), score[i], kind_from(kind[i])};
  return pieces;
}

template <typename Model>
std::vector<int32_t> encode(const Model& self, nb::bytes text) {
  std::string_view given = view(text);
  nb::gil_scoped_release release;
  return self.encode(given);
}

constexpr const char* kEncode = "Ids of a text in UTF-8; other threads run meanwhile.";

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<ScoredMerges>(m, "ScoredMerges")
      .def("__init__", [](ScoredMerges* self, nb::list texts, InputArray scores, InputArray kinds, bool space_prefix) {
        new (self) ScoredMerges(pieces_from(texts, scores, kinds), space_prefix);
      }, "texts"_a, "scores"_a, "kinds"_a, "space_prefix"_a, "SentencePiece's merges (csrc/scored_merges.h).")
      .def("encode", encode<ScoredMerges>, "text"_a, kEncode);
  nb::class_<Unigram>(m, "Unigram")
      .def("__init__", [](Unigram* self, nb::list texts, InputArray scores, InputArray kinds, bool space_prefix,
                          bool one_space, nb::bytes charsmap) {
        Charsmap map = charsmap.size() ? Charsmap(view(charsmap)) : Charsmap();
        new (self) Unigram(pieces_from(texts, scores, kinds), space_prefix, one_space, std::move(map));
      }, "texts"_a, "scores"_a, "kinds"_a, "space_prefix"_a, "one_space"_a, "charsmap"_a,
         "SentencePiece's unigram model (csrc/unigram.h); charsmap: as files keep it (csrc/charsmap.h), or empty.")
      .def("encode", encode<Unigram>, "text"_a, kEncode);
}

}  // namespace octavo
