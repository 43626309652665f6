"""The time of a step from a device's figures and a model's sizes, without having either.

A matrix product takes as long as its arithmetic and its memory traffic, joined by a p-norm (the roofline with a rounded
knee), with sizes rounded up to tiles and waves. Attention reads K and V of every context once and multiplies every
query-key pair. A tensor-parallel layer ends both its halves with an all-reduce (ring: 2 (n - 1) / n of the bytes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.backends.kv_types import KV_TYPES
from octavo.simulate.device import Device
from octavo.simulate.shape import ModelShape


def gemm_s(
    device: Device, rows: float, columns: int, depth: int, kind: str, weight_bytes: float, reads: float
) -> float:
    """Seconds of [rows, depth] x [depth, columns]. weight_bytes: of one weight; reads: how many weights are read."""
    gemm = device.gemm
    row_tiles, column_tiles = math.ceil(rows / gemm.tile_rows), math.ceil(columns / gemm.tile_columns)
    tiles = row_tiles * column_tiles
    waves = math.ceil(tiles / device.units) * device.units / tiles
    operations = 2 * row_tiles * gemm.tile_rows * columns * depth * (1 + gemm.wave_share * (waves - 1))
    moved = reads * weight_bytes + 2 * rows * (columns + depth)
    arithmetic_s = operations / (device.flops[kind] * gemm.compute)
    memory_s = moved / (device.memory_bytes_per_s * gemm.memory)
    return gemm.overhead_s + _joined(arithmetic_s, memory_s, gemm.sharpness)


def all_reduce_s(device: Device, devices: int, size_bytes: float) -> float:
    """Seconds until every one of so many devices has the sum of arrays of `size_bytes`."""
    model = device.all_reduce
    moved_s = 2 * (devices - 1) / devices * size_bytes / (device.link_bytes_per_s * model.efficiency[devices])
    return _joined(model.latency_s[devices], moved_s, model.sharpness)


def _joined(first_s: float, second_s: float, sharpness: float) -> float:
    longer, shorter = max(first_s, second_s), min(first_s, second_s)
    share: float = (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)
    return longer * share


@dataclass(frozen=True, slots=True)
class Setup:
    """A model on some devices. kind: type that is multiplied in. weight_bytes: of one element.

    kv_type: of stored K and V, see backends/kv_types.py.
    """

    device: Device
    model: ModelShape
    tensor_parallel: int = 1
    kind: str = "bf16"
    weight_bytes: float = 2.0
    kv_type: str = "bf16"
    memory_share: float = 0.9

    def __post_init__(self) -> None:
        degree, model, device = self.tensor_parallel, self.model, self.device
        if degree > 1 and degree not in device.all_reduce.latency_s:
            known = ", ".join(map(str, (1, *sorted(device.all_reduce.latency_s))))
            raise ValueError(f"the tensor-parallel degree is {degree}; {device.name} has figures for {known}.")
        if model.kv_heads % degree and degree % model.kv_heads:
            raise ValueError(f"the tensor-parallel degree is {degree}; {model.name} has {model.kv_heads} kv heads.")
        if self.kv_type not in KV_TYPES:
            raise ValueError(f"the KV type is {self.kv_type!r}; supported are {', '.join(KV_TYPES)}.")
        if self.kind not in device.flops:
            raise ValueError(f"the type is {self.kind!r}; {device.name} has figures for {', '.join(device.flops)}.")

    @property
    def kv_tokens(self) -> int:
        """Tokens whose K and V fit beside the weights. Raises ValueError when the weights don't fit."""
        device, model = self.device, self.model
        weights = model.parameters * self.weight_bytes
        left = device.memory_bytes * self.memory_share * self.tensor_parallel - weights
        tokens = int(left / (model.kv_bytes_per_token(self.kv_type) * self._kv_copies))
        if tokens < 1:
            raise ValueError(
                f"{model.name} needs {weights / 1e9:.1f} GB for weights; {self.tensor_parallel} x {device.name} leave "
                f"{device.memory_bytes * self.memory_share * self.tensor_parallel / 1e9:.1f} GB. Use more devices, or "
                "smaller weights."
            )
        return tokens

    @property
    def _kv_copies(self) -> float:
        """With more devices than kv heads, each head is on several of them."""
        return max(1.0, self.tensor_parallel / self.model.kv_heads)


class AnalyticCost:
    """A StepCost. Products depend on the number of tokens only and are remembered."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._products: dict[int, float] = {}
        self._heads: dict[int, float] = {}
        model, degree, device = setup.model, setup.tensor_parallel, setup.device
        heads, kv_heads = model.heads / degree, max(1.0, model.kv_heads / degree)
        attention_flops = 4 * heads * model.head_dim * model.layers
        self._per_pair_s = attention_flops / (device.flops[setup.kind] * device.attention_compute)
        kv_bytes = model.kv_bytes_per_token(setup.kv_type) * kv_heads / model.kv_heads
        self._per_context_s = kv_bytes / (device.memory_bytes_per_s * device.attention_memory)
        self._attention_overhead_s = model.layers * device.attention_overhead_s

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        products_s = self._products.get(tokens)
        if products_s is None:
            products_s = self._products[tokens] = self._layers_s(tokens)
        head_s = self._heads.get(samples)
        if head_s is None:
            head_s = self._heads[samples] = self._head_s(samples)
        attention_s = max(self._per_pair_s * pairs, self._per_context_s * context) + self._attention_overhead_s
        return self.setup.device.step_overhead_s + products_s + head_s + attention_s

    def _layers_s(self, tokens: int) -> float:
        setup = self.setup
        model, degree = setup.model, setup.tensor_parallel
        heads, kv_heads = math.ceil(model.heads / degree), max(1, model.kv_heads // degree)
        layer_s = self._product_s(tokens, (heads + 2 * kv_heads) * model.head_dim, model.hidden)
        layer_s += self._product_s(tokens, model.hidden, heads * model.head_dim)
        layer_s += self._ffn_s(tokens) + self._elementwise_s(tokens)
        if degree > 1:
            layer_s += 2 * all_reduce_s(setup.device, degree, 2.0 * tokens * model.hidden)
        return model.layers * layer_s

    def _ffn_s(self, tokens: int) -> float:
        """Experts: with t tokens that choose k of n at random, n (1 - (1 - k/n)^t) are read, and share t k rows."""
        model, width = self.setup.model, max(1, self.setup.model.ffn // self.setup.tensor_parallel)
        if not model.experts:
            return self._product_s(tokens, 2 * width, model.hidden) + self._product_s(tokens, model.hidden, width)
        chosen = model.experts_per_token / model.experts
        active = model.experts * (1 - (1 - chosen) ** tokens)
        rows = tokens * model.experts_per_token
        return self._product_s(tokens, model.experts, model.hidden) + sum(
            gemm_s(
                self.setup.device,
                rows,
                columns,
                depth,
                self.setup.kind,
                self.setup.weight_bytes,
                reads=active * columns * depth,
            )
            for columns, depth in ((2 * width, model.hidden), (model.hidden, width))
        )

    def _elementwise_s(self, tokens: int) -> float:
        """Two norms with their residuals, rotation and gating: each reads and writes its rows of 2 bytes."""
        model, degree, device = self.setup.model, self.setup.tensor_parallel, self.setup.device
        experts = max(1, model.experts_per_token)
        elements = 8 * model.hidden + 3 * model.ffn * experts / degree + 4 * model.heads * model.head_dim / degree
        return 2 * tokens * elements / (device.memory_bytes_per_s * device.elementwise_memory)

    def _head_s(self, samples: int) -> float:
        if not samples:
            return 0.0
        return self._product_s(
            samples, math.ceil(self.setup.model.vocab / self.setup.tensor_parallel), self.setup.model.hidden
        )

    def _product_s(self, rows: float, columns: int, depth: int) -> float:
        setup = self.setup
        return gemm_s(setup.device, rows, columns, depth, setup.kind, setup.weight_bytes, reads=columns * depth)
