"""Rows with values that Python cannot represent: read again, so that one such row does not block access to the others.

The driver reads a batch as a whole, and raises at the first value that it cannot convert. The result is still available
then, and is read once more with the loaders below. Results that can be read at once are not slowed down by them.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import DateBinaryLoader, DateLoader, TimestamptzBinaryLoader, TimestamptzLoader
from psycopg.types.json import JsonLoader

if TYPE_CHECKING:
    from psycopg import BaseConnection

UNREADABLE: Final = (psycopg.DataError, ValueError, OverflowError, RecursionError)
"""Errors of the driver's loaders: for a time or date outside of the years 1 to 9999, and for JSON with too long numbers or
too deep nesting.
"""

FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)
"""`FIRST` and `LAST` replace all times before and after them."""


class _Moment(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except UNREADABLE:
            text = bytes(data)
            return FIRST if text.startswith((b"-", b"0001")) or text.endswith(b"BC") else LAST


class _BinaryMoment(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except UNREADABLE:
            return FIRST if bytes(data)[0] & 0x80 else LAST


class _Day(DateLoader):
    def load(self, data: Buffer) -> date:
        try:
            return super().load(data)
        except UNREADABLE:
            text = bytes(data)
            return date.min if text.startswith(b"-") or text.endswith(b"BC") else date.max


class _BinaryDay(DateBinaryLoader):
    def load(self, data: Buffer) -> date:
        try:
            return super().load(data)
        except UNREADABLE:
            return date.min if bytes(data)[0] & 0x80 else date.max


class _Json(JsonLoader):
    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except UNREADABLE:
            return bytes(data).decode()


class _BinaryJsonb(_Json):
    format = Format.BINARY

    def load(self, data: Buffer) -> Any:
        # The first byte is the version of the format.
        return super().load(bytes(data)[1:])


class _BinaryJson(_Json):
    format = Format.BINARY


_LOADERS: Final[tuple[tuple[str, type[Loader]], ...]] = (
    ("timestamptz", _Moment),
    ("timestamptz", _BinaryMoment),
    ("date", _Day),
    ("date", _BinaryDay),
    ("json", _Json),
    ("json", _BinaryJson),
    ("jsonb", _Json),
    ("jsonb", _BinaryJsonb),
)


@dataclass(frozen=True, slots=True)
class _Context:
    """What a transformer takes its loaders and its encoding from."""

    adapters: AdaptersMap
    connection: "BaseConnection[Any] | None"


def rows(context: Any, result: Any) -> list[tuple[Any, ...]]:
    """Return all rows of a result.

    A time or date that Python cannot represent becomes the first or last one that it can; JSON that it cannot parse becomes
    its text.

    Args:
        context: psycopg connection or cursor (an `AdaptContext`) of the result; its loaders are not changed. The
            connection may be closed.
        result: result to read.
    """
    adapters = AdaptersMap(context.adapters)
    for name, loader in _LOADERS:
        adapters.register_loader(name, loader)
    # A closed connection has no encoding; the library's own ones use UTF-8, as a transformer without a connection does.
    connection = None if context.connection is None or context.connection.closed else context.connection
    transformer = Transformer(_Context(adapters, connection))
    transformer.set_pgresult(result)
    found: list[tuple[Any, ...]] = transformer.load_rows(0, result.ntuples, tuple)
    return found
