// Python bindings of what turns text into tokens.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "module_text.h"
#include "scored_merges.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

PieceKind kind_from(int32_t value) {
  if (value < int32_t(PieceKind::kNormal) || value > int32_t(PieceKind::kByte)) return PieceKind::kNormal;
  return PieceKind(value);
}

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<ScoredMerges>(m, "ScoredMerges")
      .def("__init__", [](ScoredMerges* self, nb::list texts, InputArray scores, InputArray kinds, bool space_prefix) {
        int64_t count = int64_t(texts.size());
        const float* score = input<float>(scores, "scores", count);
        const int32_t* kind = input<int32_t>(kinds, "kinds", count);
        std::vector<Piece> pieces(static_cast<size_t>(count));
        for (size_t i = 0; i < pieces.size(); i++)  // the list keeps its bytes alive
          pieces[i] = {view(nb::cast<nb::bytes>(texts[i])), score[i], kind_from(kind[i])};
        new (self) ScoredMerges(pieces, space_prefix);
      }, "texts"_a, "scores"_a, "kinds"_a, "space_prefix"_a, "SentencePiece's pieces (csrc/scored_merges.h).")
      .def("encode", [](const ScoredMerges& self, nb::bytes text) {
        std::string_view given = view(text);
        nb::gil_scoped_release release;
        return self.encode(given);
      }, "text"_a, "Ids of a text in UTF-8; other threads run meanwhile.");
}

}  // namespace octavo
