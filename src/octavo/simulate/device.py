"""What a device can do: nominal figures, and how much of them kernels reach. Every number has its source."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.simulate.fields import Fields, shipped

_SOURCED = (
    "memory_bytes",
    "memory_bytes_per_s",
    "flops",
    "units",
    "link_bytes_per_s",
    "gemm",
    "attention",
    "all_reduce",
    "elementwise_memory",
    "step_overhead_s",
)


@dataclass(frozen=True, slots=True)
class Gemm:
    """compute, memory: shares of peak and bandwidth that large products reach. sharpness: p of the p-norm that joins
    time of arithmetic and time of memory (infinite: the longer one counts alone). tile_rows, tile_columns: what sizes
    are rounded up to. wave_share: how much of a last wave that doesn't fill all units is lost."""

    compute: float
    memory: float
    sharpness: float
    tile_rows: int
    tile_columns: int
    wave_share: float
    overhead_s: float


@dataclass(frozen=True, slots=True)
class AllReduce:
    """efficiency: share of the link that large arrays reach, and latency_s of small ones, both by number of devices;
    sharpness as in Gemm."""

    efficiency: dict[int, float]
    sharpness: float
    latency_s: dict[int, float]


@dataclass(frozen=True, slots=True)
class Device:
    """flops: by type, operations a second (a multiply-add is two). units: SMs, CUs or cores. link_bytes_per_s: one
    direction, all links of a device together. elementwise_memory: share of the bandwidth that norms and the like reach.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops: dict[str, float]
    units: int
    link_bytes_per_s: float
    gemm: Gemm
    attention_compute: float
    attention_memory: float
    attention_overhead_s: float
    all_reduce: AllReduce
    elementwise_memory: float
    step_overhead_s: float

    @classmethod
    def load(cls, name: str) -> Device:
        """A device file by path, or a shipped one by name. Raises FileError."""
        fields = Fields.read(shipped("devices", name))
        sources = fields.inner("sources")
        for what in _SOURCED:
            sources.text(what)
        flops, attention = fields.inner("flops"), fields.inner("attention")
        if not flops.names():
            raise fields.error("flops", "is empty; it must have a figure for at least one type, such as bf16")
        return cls(
            name=fields.text("name"),
            memory_bytes=fields.number("memory_bytes"),
            memory_bytes_per_s=fields.number("memory_bytes_per_s"),
            flops={kind: flops.number(kind) for kind in flops.names()},
            units=fields.integer("units"),
            link_bytes_per_s=fields.number("link_bytes_per_s"),
            gemm=_gemm(fields.inner("gemm")),
            attention_compute=attention.number("compute", high=1.0),
            attention_memory=attention.number("memory", high=1.0),
            attention_overhead_s=attention.number("overhead_s", zero=True),
            all_reduce=_all_reduce(fields.inner("all_reduce")),
            elementwise_memory=fields.number("elementwise_memory", high=1.0),
            step_overhead_s=fields.number("step_overhead_s", zero=True),
        )


def _gemm(fields: Fields) -> Gemm:
    return Gemm(
        compute=fields.number("compute", high=1.0),
        memory=fields.number("memory", high=1.0),
        sharpness=fields.number("sharpness", low=1.0),
        tile_rows=fields.integer("tile_rows"),
        tile_columns=fields.integer("tile_columns"),
        wave_share=fields.number("wave_share", high=1.0, zero=True),
        overhead_s=fields.number("overhead_s", zero=True),
    )


def _all_reduce(fields: Fields) -> AllReduce:
    latency, efficiency = fields.inner("latency_s"), fields.inner("efficiency")
    counts = {name: latency.count(name, 2, "devices") for name in latency.names()}
    return AllReduce(
        efficiency={count: efficiency.number(name, high=1.0) for name, count in counts.items()},
        sharpness=fields.number("sharpness", low=1.0),
        latency_s={count: latency.number(name) for name, count in counts.items()},
    )
