"""JSON into the frozen dataclasses of this package, by their types.

A member may be named as in Python or in camelCase. Members nobody asked for are passed over, so an
older client understands a newer server; one that is missing or of another type is a `BadAnswer`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .errors import BadAnswer

T = TypeVar("T")


def read(kind: type[T], document: Any) -> T:
    """The document as a `kind`."""
    return cast(T, _value(kind, document, kind.__name__))


def read_list(kind: type[T], document: Any, member: str) -> tuple[T, ...]:
    """The list under `member` of the document."""
    rows = document.get(member) if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise BadAnswer(f"the answer has no list {member!r}; is this a Tollgate server?")
    return tuple(read(kind, row) for row in rows)


@cache
def _fields(kind: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Name, camelCase name, type, and whether it may be absent."""
    hints = get_type_hints(kind)
    fields = []
    for field in dataclasses.fields(kind):
        head, *rest = field.name.split("_")
        camel = head + "".join(word.capitalize() for word in rest)
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        fields.append((field.name, camel, hints[field.name], has_default))
    return tuple(fields)


def _value(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, place)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        # Our unions are all `X | None`.
        return _value(args[0], value, place)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(args[0], item, place) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _value(args[1], item, place) for name, item in value.items()}
    if kind is datetime and isinstance(value, str):
        return _instant(value, place)
    if kind is float and type(value) in (int, float):
        return float(value)
    # `type` and not `isinstance`: true is not the number 1.
    if type(value) is kind:
        return value
    raise BadAnswer(f"{place} is {value!r}, which is not a {kind}; is this a Tollgate server?")


def _dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise BadAnswer(f"{place} is {value!r}, not an object; is this a Tollgate server?")
    members = {}
    for name, camel, hint, may_be_absent in _fields(kind):
        key = name if name in value else camel
        if key in value:
            members[name] = _value(hint, value[key], f"{place}.{name}")
        elif not may_be_absent:
            raise BadAnswer(f"{place}.{name} is missing; is this a Tollgate server?")
    return kind(**members)


def _instant(text: str, place: str) -> datetime:
    # Python 3.10 reads no `Z`.
    try:
        return datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
    except ValueError:
        raise BadAnswer(f"{place} is {text!r}, not a time") from None
