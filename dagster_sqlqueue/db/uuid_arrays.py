"""Arrays of UUIDs as parameters: a claimed batch is ended by its ids."""

import struct
from uuid import UUID

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">iiiii")
"""Dimensions, whether there are nulls, type of the elements, their number, number of the first one."""
_LENGTH = struct.pack(">i", 16)


class UuidArray(list[UUID]):
    """List of UUIDs that the library's own connections encode as a whole; others take it as any list.

    The driver encodes a list element by element, in Python: of a hundred UUIDs that takes ten times as long.
    """


class _UuidArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: UuidArray) -> Buffer:
        if not obj:
            return struct.pack(">iii", 0, 0, _UUID)
        return _HEAD.pack(1, 0, _UUID, len(obj), 1) + b"".join([_LENGTH + one.bytes for one in obj])


_UUID = psycopg.adapters.types["uuid"].oid
_UuidArrayDumper.oid = psycopg.adapters.types["uuid"].array_oid


def register(connection: "psycopg.Connection[object]") -> None:
    """Have a connection of the library's own encode `UuidArray`."""
    connection.adapters.register_dumper(UuidArray, _UuidArrayDumper)
