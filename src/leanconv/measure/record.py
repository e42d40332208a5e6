"""The one way in which results are turned into plain data and back.

A record is a frozen dataclass registered with `@record`. As data it is a dict of its fields plus
`"record"`, its class's name; tuples become lists and come back as tuples. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_RECORDS: dict[str, type] = {}


def record(cls: type[T]) -> type[T]:
    """Register a frozen dataclass as a kind of result that travels."""
    _RECORDS[cls.__name__] = cls
    return cls


def to_data(value: Any) -> Any:
    """Plain dicts, lists, strings and numbers for a record or anything made of records."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"record": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): to_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_data(item) for item in value]
    return value


def from_data(data: Any) -> Any:
    """The inverse of `to_data`.

    Raises:
        ValueError: for a record this version does not know, or fields it does not have.
    """
    if isinstance(data, list):
        return tuple(from_data(item) for item in data)
    if not isinstance(data, dict):
        return data
    fields = {key: from_data(item) for key, item in data.items() if key != "record"}
    if "record" not in data:
        return fields
    cls = _RECORDS.get(data["record"])
    if cls is None:
        raise ValueError(f"unknown record {data['record']!r}; it may be of another version")
    try:
        return cls(**fields)
    except TypeError as error:
        raise ValueError(f"record {data['record']!r} of another version: {error}") from None
