"""CASES LD-03 for GGUF: damaged and hostile files end in one clear sentence, soon, without memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.formats.blocks import quantize
from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.formats.tensor import TensorType

U32, INT, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, type_: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_) + value


def info(name: str, dims: tuple[int, ...] = (32,), type_: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_, offset)


def gguf(
    entries: tuple[bytes, ...] = (), infos: tuple[bytes, ...] = (), data: int = 1024, keys: int = -1, tensors: int = -1
) -> bytes:
    """A file of these parts; `keys` and `tensors` override the counts in the header."""
    head = b"GGUF" + struct.pack(
        "<IQQ", 3, tensors if tensors >= 0 else len(infos), keys if keys >= 0 else len(entries)
    )
    body = head + b"".join(entries) + b"".join(infos)
    return body + bytes(-len(body) % 32) + bytes(data)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "magic only": (b"GGUF", "the version needs 4 bytes"),
    "header cut": (b"GGUF" + struct.pack("<IQ", 3, 1), "number of metadata keys needs 8 bytes"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "zip": (b"PK\x03\x04" + bytes(100), r"begins with b'PK\\x03\\x04', expected b'GGUF'"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0) + bytes(64), "version 1; supported are 2 and 3"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big-endian"),
    "2^60 tensors": (gguf(tensors=2**60), "claims 1152921504606846976 tensors"),
    "2^60 keys": (gguf(keys=2**60), "claims 1152921504606846976 metadata keys"),
    "key length 2^63": (gguf((struct.pack("<Q", 2**63) + b"x" * 16,)), "metadata key 0 has 9223372036854775808 bytes"),
    "value length 2^63": (gguf((entry("a", STRING, struct.pack("<Q", 2**63)),)), "needs 9223372036854775808 bytes"),
    "key not UTF-8": (gguf((entry("a", U32, bytes(4)).replace(b"a", b"\xff"),)), "not UTF-8"),
    "key twice": (gguf((entry("a", U32, bytes(4)),) * 2), "metadata a twice"),
    "value type 77": (gguf((entry("a", 77, bytes(8)),)), "value type 77"),
    "bool 2": (gguf((entry("a", BOOL, b"\2"),)), "boolean with value 2"),
    "array of arrays": (
        gguf((entry("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000),)),
        "array of arrays",
    ),
    "array too long": (gguf((entry("a", ARRAY, struct.pack("<IQ", U32, 2**62)),)), "claims 4611686018427387904 values"),
    "strings too many": (gguf((entry("a", ARRAY, struct.pack("<IQ", STRING, 2**62)),)), "strings in metadata a"),
    "string past the end": (
        gguf((entry("a", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + struct.pack("<Q", 2**40)),)),
        "string 1 of 2 in metadata a ends at",
    ),
    "last string's length cut": (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + entry("a", ARRAY, struct.pack("<IQ", STRING, 2) + text("four") + bytes(4)),
        "string 1 of 2 in metadata a ends at",
    ),
    "alignment 0": (gguf((entry("general.alignment", U32, struct.pack("<I", 0)),)), "general.alignment is 0"),
    "alignment 3": (gguf((entry("general.alignment", U32, struct.pack("<I", 3)),)), "general.alignment is 3"),
    "alignment text": (gguf((entry("general.alignment", STRING, text("32")),)), "general.alignment must be an integer"),
    "split": (gguf((entry("split.count", U32, struct.pack("<I", 4)),)), "is one of 4 files of a model"),
    "5 dimensions": (gguf((), (info("t", (1,) * 5),)), "tensor t has 5 dimensions"),
    "0 dimensions": (gguf((), (info("t", ()),)), "tensor t has 0 dimensions"),
    "2^32 dimensions": (gguf((), (text("t") + struct.pack("<I", 2**32 - 1),)), "tensor t has 4294967295 dimensions"),
    "dimension 0": (gguf((), (info("t", (32, 0)),)), "each dimension must be at least 1"),
    "product overflows": (gguf((), (info("t", (2**63, 2**63, 4)),)), "tensor t .* needs bytes"),
    "product wraps to 32": (gguf((), (info("t", (2**60 + 2, 16)),)), "tensor t .* needs bytes"),
    "type 99": (gguf((), (info("t", (32,), 99),)), "type number 99"),
    "row not a multiple": (gguf((), (info("t", (33,), 2),)), "Q4_0 needs a multiple of 32"),
    "offset past the end": (gguf((), (info("t", offset=2**40),)), "needs bytes .* but the file ends at"),
    "offset 2^64 - 32": (gguf((), (info("t", offset=2**64 - 32),)), "needs bytes .* but the file ends at"),
    "unaligned": (gguf((), (info("t", offset=4),)), "offset 4, which is not a multiple of the alignment, 32"),
    "overlapping": (gguf((), (info("a", (64,)), info("b", (8,), offset=32))), "tensor b begins .* inside tensor a"),
    "same place": (gguf((), (info("a"), info("b"))), "inside tensor a"),
    "tensor twice": (gguf((), (info("t"), info("t", offset=128))), "tensor t twice"),
    "name too long": (gguf((), (info("t" * 300),)), "name of tensor 0 has 300 bytes; the limit is 256"),
    "no data": (gguf((), (info("t"),), data=0), "needs bytes"),
    "escape codes in names": (gguf((), (info("\x1b[2J", type_=99),)), r"tensor \?\[2J has type"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_header(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(ModelFileError, match=message) as caught:
        GgufFile.open(path)
    assert time.perf_counter() - start < 1.0
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "cut", [lambda size: size // 10, lambda size: size // 2, lambda size: size - 1], ids=["10%", "50%", "last byte"]
)
def test_cut_off(default_model: ModelFiles, tmp_path: Path, cut: Callable[[int], int]) -> None:
    content = default_model.path.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: cut(len(content))])
    start = time.perf_counter()
    with pytest.raises(ModelFileError, match=r"tensor \S+ .* needs bytes \d+ to \d+, but the file ends at \d+"):
        GgufFile.open(path)
    assert time.perf_counter() - start < 1.0


def test_many_strings_cost_less_than_a_second(tmp_path: Path) -> None:
    """The slowest thing a file can make the parser do: walk over as many empty strings as it allows."""
    path = tmp_path / "strings.gguf"
    most = (1 << 21) + 1
    path.write_bytes(gguf((entry("a", ARRAY, struct.pack("<IQ", STRING, most) + bytes(8 * most)),)))
    start = time.process_time()
    with pytest.raises(ModelFileError, match="can hold at most 2097152"):
        GgufFile.open(path)
    assert time.process_time() - start < 1.0


def test_many_tensors_cost_less_than_a_second(tmp_path: Path) -> None:
    path = tmp_path / "tensors.gguf"
    most = 1 << 16
    infos = tuple(info(str(number), offset=128 * (number % (most - 1))) for number in range(most))
    path.write_bytes(gguf((), infos, data=128 * most))
    start = time.process_time()
    with pytest.raises(ModelFileError, match="inside tensor"):
        GgufFile.open(path)
    assert time.process_time() - start < 1.0
    path.write_bytes(gguf((), infos, data=0, tensors=most + 1))
    with pytest.raises(ModelFileError, match="can hold at most 65536"):
        GgufFile.open(path)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="can't be opened: Is a directory"):
        GgufFile.open(tmp_path)
    with pytest.raises(ModelFileError, match="can't be opened: No such file"):
        GgufFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile.open("/dev/zero")


def test_unsupported_type_is_an_error_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "k.gguf"
    path.write_bytes(gguf((), (info("t", (256,), 16), info("u", (32,), offset=96))))
    file = GgufFile.open(path)
    assert file.tensor("u").type is TensorType.F32
    with pytest.raises(
        ModelFileError,
        match=r"k\.gguf.* tensor t has type IQ2_XXS, .* supported are F32, F16, BF16, Q8_0, .*, IQ4_NL, IQ4_XS, MXFP4",
    ):
        file.tensor("t")
    with pytest.raises(ModelFileError, match="tensor v is missing"):
        file.tensor("v")


def test_metadata_text_that_is_not_utf8_is_an_error_when_read(tmp_path: Path) -> None:
    path = tmp_path / "latin1.gguf"
    path.write_bytes(gguf((entry("tokens", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xe9")),)))
    metadata = GgufFile.open(path).metadata
    assert metadata.byte_strings("tokens") == [b"\xe9"]
    with pytest.raises(ModelFileError, match=r"metadata tokens holds .* not UTF-8"):
        metadata.strings("tokens")


def small_file(path: Path) -> bytes:
    rng = np.random.default_rng(0)
    write_gguf(
        path,
        {
            "general.architecture": "llama",
            "llama.block_count": 1,
            "llama.eps": 1e-5,
            "flag": True,
            "wide": np.uint64(2**40),
            "tokens": ["a", "b", "é", ""],
            "scores": np.arange(4, dtype=np.float32),
        },
        [
            quantize("embed", rng.standard_normal((4, 32)), TensorType.Q8_0),
            quantize("up", rng.standard_normal((2, 64)), TensorType.Q4_1),
            quantize("norm", rng.standard_normal(5), TensorType.F32),
        ],
    )
    return path.read_bytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return small_file(tmp_path_factory.mktemp("small") / "small.gguf")


def read_everything(path: Path) -> None:
    file = GgufFile.open(path)
    dict(file.metadata)
    for name in file.infos:
        tensor = file.tensor(name)
        assert tensor.data.size <= path.stat().st_size
        tensor.data.sum()


MUTATION = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10_000), st.just(0)),
    st.tuples(
        st.just("u64"), st.integers(0, 10_000), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1])
    ),
    st.tuples(st.just("u32"), st.integers(0, 10_000), st.sampled_from([0, 1, 8, 9, 2**16, 2**31, 2**32 - 1])),
    st.tuples(st.just("double"), st.integers(0, 10_000), st.integers(1, 64)),
)


def mutate(content: bytes, mutations: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(content)
    for kind, place, value in mutations:
        at = place % max(1, len(out))
        if kind == "flip" and out:
            out[at] ^= value
        elif kind == "cut":
            del out[at:]
        elif kind == "u64":
            out[at : at + 8] = struct.pack("<Q", value)
        elif kind == "u32":
            out[at : at + 4] = struct.pack("<I", value)
        elif kind == "double":
            out[at:at] = out[at : at + value]
    return bytes(out)


@given(mutations=st.lists(MUTATION, min_size=1, max_size=4))
@settings(max_examples=400, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutations_raise_nothing_else_and_take_no_memory(
    small: bytes, tmp_path: Path, mutations: list[tuple[str, int, int]]
) -> None:
    path = tmp_path / "mutant.gguf"
    content = mutate(small, mutations)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read_everything(path)
    except ModelFileError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 * len(content) + 200_000


def test_written_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    small_file(path)
    file = GgufFile.open(path)
    assert file.metadata.string("general.architecture") == "llama"
    assert file.metadata.integer("wide") == 2**40
    assert file.metadata.boolean("flag") is True
    assert file.metadata.strings("tokens") == ["a", "b", "é", ""]
    assert file.metadata.numbers("scores").tolist() == [0, 1, 2, 3]
    assert file.tensor("up").shape == (2, 64)
    assert file.tensor("norm").data.shape == (1, 20)
    assert not list(tmp_path.glob("*.part"))
