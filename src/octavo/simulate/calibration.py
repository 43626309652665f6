"""The calibration file: what `octavo simulate --calibrate` has measured, checked when it is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from octavo.formats.whole_file import write_whole
from octavo.simulate.calibrate import PARTS, CalibratedCost
from octavo.simulate.fields import MAX_CONTEXT, Fields
from octavo.simulate.machine import LoopTime, Spread


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a calibration file holds. loop: of the loop around the executor; spread: as VirtualMachine draws from it."""

    model: str
    cost: CalibratedCost
    loop: LoopTime
    spread: Spread
    page_size: int
    num_pages: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    def write(self, path: Path) -> None:
        """Whole or not at all. Raises OSError."""
        content = {
            "model": self.model,
            "loop": self.loop._asdict(),
            "page_size": self.page_size,
            "num_pages": self.num_pages,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "products_s": {
                str(knot): seconds for knot, seconds in zip(self.cost.knots, self.cost.products_s, strict=True)
            },
            **dict(zip(PARTS, self.cost.parts_s, strict=True)),
            "spread": {
                "bounds_s": list(self.spread.bounds_s),
                "factors": {str(i): list(factors) for i, factors in enumerate(self.spread.factors)},
            },
        }
        write_whole(path, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Raises FileError."""
        fields = Fields.read(path)
        products, loop = fields.inner("products_s"), fields.inner("loop")
        names = {products.count(name, 1, "tokens"): name for name in products.names()}
        knots = sorted(names)
        if len(knots) < 2:
            raise fields.error("products_s", f"has {len(knots)} entries; it must have at least 2")
        return cls(
            model=fields.text("model"),
            cost=CalibratedCost(
                knots,
                [products.number(names[knot], zero=True) for knot in knots],
                [fields.number(name, zero=True) for name in PARTS],
            ),
            loop=LoopTime(*(loop.number(name, zero=True) for name in LoopTime._fields)),
            spread=_spread(fields.inner("spread")),
            page_size=fields.integer("page_size", high=1 << 16),
            num_pages=fields.integer("num_pages"),
            max_model_len=fields.integer("max_model_len", high=MAX_CONTEXT),
            max_num_seqs=fields.integer("max_num_seqs", high=1 << 16),
            max_num_batched_tokens=fields.integer("max_num_batched_tokens"),
        )


def _spread(fields: Fields) -> Spread:
    bounds_s, classes = fields.numbers("bounds_s"), fields.inner("factors")
    if bounds_s != sorted(bounds_s):
        raise fields.error("bounds_s", "does not ascend")
    factors = [classes.numbers(str(i), high=1e6) for i in range(len(bounds_s) + 1)]
    for i, each in enumerate(factors):
        if not each:
            raise classes.error(str(i), "is empty; it must have at least 1 number")
    return Spread(tuple(bounds_s), tuple(map(tuple, factors)))
