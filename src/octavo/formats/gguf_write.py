"""Writing GGUF version 3: small models for tests, and re-quantised copies of real ones."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.ggml_types import BY_TENSOR_TYPE
from octavo.formats.gguf import DEFAULT_ALIGNMENT, MAGIC
from octavo.formats.gguf_metadata import FIXED_DTYPES, ValueType
from octavo.formats.tensor import Tensor

MetadataValue = bytes | bool | int | float | str | np.generic | npt.NDArray[Any] | list[str]

_TYPE_OF_DTYPE = {dtype: type_ for type_, dtype in FIXED_DTYPES.items() if type_ is not ValueType.BOOL}


Check = Callable[[Path], None]


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, MetadataValue],
    tensors: Iterable[Tensor],
    check: Check | None = None,
) -> None:
    """Write a file that GgufFile.open reads back; it appears under its name only when it is whole.

    Python integers become uint32 (int32 if negative, 64 bits if they need it) and floats float32; numpy scalars and
    arrays keep their own type; bytes are a type and value as Metadata.encoded has them. Tensor data is written as it
    is, in the given order, at the default alignment; what is made later is made only then, one at a time. check: called
    with the whole file while it still has another name; what it raises leaves nothing behind, and a file that had this
    name as it was.
    """
    target = Path(path)
    part = target.with_name(target.name + ".part")
    ordered = list(tensors)
    try:
        with part.open("wb") as file:
            file.write(MAGIC + struct.pack("<IQQ", 3, len(ordered), len(metadata)))
            for key, value in metadata.items():
                file.write(_string(key) + _value(key, value))
            offset = 0
            for tensor in ordered:
                file.write(_info(tensor, offset))
                offset += _padded(tensor.nbytes)
            file.write(bytes(_padded(file.tell()) - file.tell()))
            for tensor in ordered:
                data = np.ascontiguousarray(tensor.data)
                if data.nbytes != tensor.nbytes:
                    raise ValueError(f"tensor {tensor.name} has {data.nbytes} bytes; it said {tensor.nbytes}")
                file.write(data.data)
                file.write(bytes(_padded(data.nbytes) - data.nbytes))
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(part)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _padded(count: int) -> int:
    return -(-count // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _info(tensor: Tensor, offset: int) -> bytes:
    dims = tensor.shape[::-1]
    return _string(tensor.name) + struct.pack(
        f"<I{len(dims)}QIQ", len(dims), *dims, BY_TENSOR_TYPE[tensor.type].id, offset
    )


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(key: str, value: MetadataValue) -> bytes:
    """Type number and value."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bool, np.bool_)):
        return struct.pack("<I?", ValueType.BOOL, bool(value))
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, len(value)) + b"".join(map(_string, value))
    if isinstance(value, np.ndarray):
        type_ = _number_type(key, value.dtype)
        values: bytes = value.astype(FIXED_DTYPES[type_]).tobytes()
        return struct.pack("<IIQ", ValueType.ARRAY, type_, value.size) + values
    if isinstance(value, np.generic):
        type_ = _number_type(key, value.dtype)
    elif isinstance(value, float):
        type_ = ValueType.FLOAT32
    elif value < 0:
        type_ = ValueType.INT32 if value >= -(2**31) else ValueType.INT64
    else:
        type_ = ValueType.UINT32 if value < 2**32 else ValueType.UINT64
    return struct.pack("<I", type_) + np.asarray(value, FIXED_DTYPES[type_]).tobytes()


def _number_type(key: str, dtype: np.dtype[Any]) -> ValueType:
    type_ = _TYPE_OF_DTYPE.get(dtype.newbyteorder("<"))
    if type_ is None:
        raise ValueError(f"metadata {key} has numpy type {dtype}, which GGUF can't hold")
    return type_
