"""Rows that hold values which Python does not have: read again, so that one of them keeps nobody from the others.

The driver reads a batch as a whole, and raises at the first value that it cannot make. The answer is still there then, and
is read once more, by the loaders below: what costs time is never in the way of rows that can be read.
"""

from datetime import UTC, date, datetime
from typing import Any, Final

import psycopg
from psycopg.adapt import Buffer, Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import DateBinaryLoader, DateLoader, TimestamptzBinaryLoader, TimestamptzLoader
from psycopg.types.json import JsonLoader

UNREADABLE: Final = (psycopg.DataError, ValueError, OverflowError, RecursionError)
"""What the driver's loaders raise: for a time or day outside of the years 1 to 9999, and for JSON with numbers too long, or
nested too deeply.
"""

FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)
"""Read in place of all times before and after them."""


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


def rows(cursor: Any) -> list[tuple[Any, ...]]:
    """The whole answer of a statement: of the times that Python does not have the first or last that it has, and as its text
    the JSON that it cannot read.

    Args:
        cursor: of psycopg, after an error of its loaders.
    """
    # These loaders are the cursor's own: those of the connection, which may be the caller's, stay as they are.
    for name, loader in _LOADERS:
        cursor.adapters.register_loader(name, loader)
    transformer = Transformer(cursor)
    transformer.set_pgresult(cursor.pgresult)
    found: list[tuple[Any, ...]] = transformer.load_rows(0, cursor.pgresult.ntuples, tuple)
    return found
