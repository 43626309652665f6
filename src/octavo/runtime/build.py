"""Building an engine from a config: resolve, size, pack, warm up; each phase is timed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from octavo.backends.kv_types import KvDtype
from octavo.backends.ops import Backend, KvSpec, Plan, PlanLimits, UnsupportedError
from octavo.config import EngineConfig
from octavo.engine.historical.scheduler import make_scheduler
from octavo.engine.params import SamplingParams
from octavo.engine.scheduler import Scheduler
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.step import SequenceStart, Step
from octavo.formats.pull import Progress
from octavo.formats.resolve import resolve
from octavo.models.decoder import record
from octavo.models.load import LoadedModel, load_model
from octavo.models.spec import MLP, DecoderSpec, MoE
from octavo.runtime.cgroup import default_threads, memory_room, most_threads
from octavo.runtime.engine import Engine
from octavo.runtime.executor import Executor
from octavo.runtime.facts import EngineFacts, build_identity, fingerprint
from octavo.runtime.kv_groups import KvGrouping, kv_grouping
from octavo.runtime.record import RecordingScheduler
from octavo.runtime.sizing import Demand, Sizes, choose_sizes

_logger = logging.getLogger(__name__)

OnPhase = Callable[[str, float, str], None]
_HEAD_ROWS = 64
_WARM_UP_TOKENS = 16


def build_engine(
    config: EngineConfig, on_phase: OnPhase = lambda phase, seconds, detail: None, on_fetch: Progress | None = None
) -> Engine:
    """An engine that has run a warm-up step.

    `on_phase(name, seconds, detail)` is called as each phase ends; `on_fetch(what, done bytes, all bytes)` several
    times a second while the model is fetched.

    Raises ModelNotFoundError, ModelFileError, MetadataError, WeightsError, SizingError or UnsupportedError, each one
    sentence for the user.
    """
    clock = _PhaseClock(on_phase)
    files = resolve(config.model, on_fetch)
    clock.ended("resolve", str(files.path))
    model = load_model(files)
    clock.ended("open", f"{model.spec.architecture}, {len(model.spec.layers)} layers, {model.weights_bytes} bytes")
    engine = engine_for(model, config, clock.ended)
    tokens = min(_WARM_UP_TOKENS, engine.facts.max_model_len, config.max_num_batched_tokens)
    _warm_up(engine.executor, tokens, config.page_size)
    clock.ended("warm-up", f"{tokens} tokens")
    return engine


def engine_for(model: LoadedModel, config: EngineConfig, ended: Callable[[str, str], None]) -> Engine:
    """An engine for a loaded model, not warmed up. `ended(phase, detail)` is called as each phase ends."""
    backend = make_backend(config)
    kv = kv_groups_for(model.spec, config)
    sizes = sizes_for(model, config, kv)
    ended("sizes", sizes.reason)
    model = model.for_context(sizes.max_model_len)
    limits = PlanLimits(
        max_tokens=config.max_num_batched_tokens,
        max_seqs=config.max_num_seqs,
        max_blocks=-(-sizes.max_model_len // config.page_size),
        num_pages=sizes.num_pages,
        vocab=model.spec.vocab,
        groups=len(kv.groups),
    )
    plan = make_plan(model, backend, limits, *kv.groups, places=kv.places)
    facts = _facts(model, config, backend, kv, sizes)
    ended("pack", ", ".join(f"{name} {value}" for name, value in backend.facts.items()))
    processed = config.logprobs_mode == "processed"
    executor = Executor(plan, limits, sizes.max_model_len, model.eos_ids, processed)
    return Engine(_scheduler(config, sizes, kv.windows, model.eos_ids), executor, facts)


def _scheduler(
    config: EngineConfig, sizes: Sizes, windows: tuple[int, ...], eos_ids: tuple[int, ...]
) -> Scheduler | RecordingScheduler:
    settings = _scheduler_config(config, sizes, windows, eos_ids)
    return RecordingScheduler(settings, Path(config.record)) if config.record else make_scheduler(settings)


def make_backend(config: EngineConfig) -> Backend:
    """The backend that `config` names. Each is imported only when it is used."""
    if config.backend == "reference":
        from octavo.backends.reference.plan import ReferenceBackend

        return ReferenceBackend(config.activations)
    from octavo.backends.cpu.backend import CpuBackend

    usable, reason = default_threads()
    threads = usable if config.threads is None else config.threads
    if threads > most_threads():
        raise UnsupportedError(
            f"threads is {threads}; it must be at most {most_threads()} on this machine, since all wait for each other "
            f"after every op. Leave --threads out for {usable} ({reason})"
        )
    if threads > usable:
        _logger.warning(
            "threads is %d, but this process can use %d (%s): expect it to be slower", threads, usable, reason
        )
    return CpuBackend(threads, config.isa, config.activations)


def make_plan(
    model: LoadedModel,
    backend: Backend,
    limits: PlanLimits,
    *kv: KvSpec,
    places: Sequence[tuple[int, int]] | None = None,
) -> Plan:
    """The model recorded on `backend`, weights packed. kv: the KV groups; places: of each layer, see decoder.record."""
    builder = backend.builder(limits, *kv)
    record(model.spec, model.weights, builder, places)
    return builder.finish(release=model.release)


def kv_groups_for(spec: DecoderSpec, config: EngineConfig) -> KvGrouping:
    """The KV groups of a model: one for all layers unless pages are taken one by one. Raises UnsupportedError."""
    if not _is_paged(config):
        return KvGrouping((kv_spec(spec, config),), tuple((0, index) for index in range(len(spec.layers))))
    return kv_grouping(spec, config.page_size, _kv_dtype(config), config.max_model_len or spec.context)


def kv_spec(spec: DecoderSpec, config: EngineConfig) -> KvSpec:
    """One KV group for all layers of a model, which keep all. Raises UnsupportedError unless they store alike."""
    groups = kv_grouping(spec, config.page_size, _kv_dtype(config), spec.context, windows=False).groups
    if len(groups) != 1:
        raise UnsupportedError(
            f"the model's layers make {len(groups)} KV groups; with kv_policy {config.kv_policy} and batch_policy "
            f"{config.batch_policy}, and in measurements of single ops, there can be only one"
        )
    return groups[0]


def _kv_dtype(config: EngineConfig) -> KvDtype:
    return "bf16" if config.kv_cache_dtype == "auto" else cast(KvDtype, config.kv_cache_dtype)


def _is_paged(config: EngineConfig) -> bool:
    return config.kv_policy == "paged" and config.batch_policy == "continuous"


def sizes_for(model: LoadedModel, config: EngineConfig, kv: KvGrouping) -> Sizes:
    """What the memory of this process allows. Raises SizingError for explicit sizes that don't fit."""
    return choose_sizes(_demand(model, config, kv), memory_room())


def _demand(model: LoadedModel, config: EngineConfig, kv: KvGrouping) -> Demand:
    return Demand(
        context=model.spec.context,
        page_size=config.page_size,
        page_bytes=kv.page_bytes,
        fixed_bytes=fixed_bytes(model, config),
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        pool_bytes=config.kv_cache_memory_bytes,
        windows=kv.windows,
        chunk=config.max_num_batched_tokens,
    )


def fixed_bytes(model: LoadedModel, config: EngineConfig) -> int:
    """Memory besides the page pool that the plan will take: an estimate from above."""
    return _weights_bytes(model, config) + _workspace_bytes(model.spec, config)


def _weights_bytes(model: LoadedModel, config: EngineConfig) -> int:
    """Memory that packing will take: float32 on the reference, the file's precision and a little else on the CPU."""
    if config.backend == "reference":
        return sum(4 * int(np.prod(weight.tensor.shape)) for weight in model.weights.matrices.values())
    return model.weights_bytes + model.weights_bytes // 4


def _workspace_bytes(spec: DecoderSpec, config: EngineConfig) -> int:
    """Row buffers of the widest layer at the largest step, twice for prepared rows, and a tile of logits."""
    widest = max(
        3 * spec.hidden
        + (2 * layer.mixer.heads + 2 * layer.mixer.kv_heads) * layer.mixer.head_dim
        + _ffn_widths(layer.ffn, spec.hidden)
        for layer in spec.layers
    )
    return 2 * 4 * widest * config.max_num_batched_tokens + 4 * spec.vocab * _HEAD_ROWS


def _ffn_widths(ffn: MLP | MoE, hidden: int) -> int:
    """Elements that a feed-forward keeps for each token: with experts, a row for every one that a token uses."""
    if isinstance(ffn, MLP):
        return 3 * ffn.hidden
    shared = 3 * ffn.shared.hidden if ffn.shared else 0
    return ffn.routing.used * (3 * ffn.hidden + 2 * hidden) + ffn.routing.experts + shared


def _scheduler_config(
    config: EngineConfig, sizes: Sizes, windows: tuple[int, ...], eos_ids: tuple[int, ...]
) -> SchedulerConfig:
    return SchedulerConfig(
        max_model_len=sizes.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        page_size=config.page_size,
        num_pages=sizes.num_pages,
        eos_ids=frozenset(eos_ids),
        prefix_caching=config.prefix_caching and _is_paged(config),
        policy=config.scheduling_policy,
        target_itl_s=config.target_itl_ms / 1000,
        kv_policy=config.kv_policy,
        batch_policy=config.batch_policy,
        static_padding=config.static_padding,
        windows=windows,
    )


def _facts(model: LoadedModel, config: EngineConfig, backend: Backend, kv: KvGrouping, sizes: Sizes) -> EngineFacts:
    dtype = kv.groups[0].dtype
    return EngineFacts(
        vocab=model.spec.vocab,
        eos_ids=model.eos_ids,
        defaults=model.defaults,
        max_model_len=sizes.max_model_len,
        num_pages=sizes.num_pages,
        page_size=config.page_size,
        kv_bytes_per_token=kv.bytes_per_token,
        kv_dtype=dtype,
        kv_groups=len(kv.groups),
        fingerprint=fingerprint(build_identity(), model.identity, dtype, backend.facts),
        texts={**backend.facts, "kv": dtype, "architecture": model.spec.architecture, "sizes": sizes.reason},
    )


def _warm_up(executor: Executor, count: int, page_size: int) -> None:
    """One prefill of `count` tokens and a draw, through slot 0 and the first pages: the first request then finds code
    and weights in memory. Nobody holds those pages, so what it leaves there is never read."""
    pages = np.arange(-(-count // page_size) * executor.groups, dtype=np.int32)
    none = np.empty(0, np.int32)
    start = SequenceStart(0, np.zeros(count, np.int32), count, pages, SamplingParams(), seed=0, choice=0)
    step = Step(
        step_id=-1,
        released=(),
        starts=(start,),
        append_slots=none,
        append_pages=none,
        copies=np.empty((0, 4), np.int32),
        slots=np.zeros(1, np.int32),
        num_tokens=np.array([count], np.int32),
        num_computed=np.zeros(1, np.int32),
        sample=np.ones(1, np.bool_),
        num_tokens_total=count,
    )
    executor.submit(step).result()


class _PhaseClock:
    """Reports each phase with the seconds since the one before."""

    def __init__(self, on_phase: OnPhase) -> None:
        self._on_phase = on_phase
        self._mark = time.perf_counter()

    def ended(self, phase: str, detail: str) -> None:
        now = time.perf_counter()
        self._on_phase(phase, now - self._mark, detail)
        self._mark = now
