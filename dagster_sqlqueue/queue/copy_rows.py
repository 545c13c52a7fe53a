"""Jobs as rows of a binary COPY: packed here, where most columns of most jobs are the same. No I/O.

The format is that of PostgreSQL's COPY with FORMAT binary: of each row the number of its columns, and of each column its
length in bytes and its value as the type sends it.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from datetime import UTC, datetime, timedelta

from dagster_sqlqueue.queue.intake import NewRow, PlainRow, Terms

_BLOCK_BYTES = 64_000
_PLAIN = struct.pack("!hi", 14, 16)
"""Fourteen columns, and the first of them has sixteen bytes."""
_NULL = struct.pack("!i", -1)
_FLOAT8, _TEXT = 701, 25
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_JSONB_VERSION = b"\x01"


class Packer:
    """Packs the jobs of one call as `enqueue_copy.sql` takes them.

    Args:
        queue: its name.
        terms: what is known of it.
    """

    def __init__(self, queue: str, terms: Terms) -> None:
        self._terms = terms
        self._queue = _text(queue)
        self._due = _moment(terms.now)
        self._plain: dict[int, bytes] = {}
        self._noted = set(terms.priorities)
        self._woken: set[int] = set()

    def blocks(self, rows: Iterable[NewRow | PlainRow]) -> Iterator[bytes]:
        """Jobs in blocks that are worth to be sent by themselves."""
        block: list[bytes] = []
        size = 0
        for row in rows:
            packed = self._packed_plain(row) if isinstance(row, PlainRow) else self._packed(row)
            block.append(packed)
            size += len(packed)
            if size >= _BLOCK_BYTES:
                yield b"".join(block)
                block, size = [], 0
        if block:
            yield b"".join(block)

    def _packed_plain(self, row: PlainRow) -> bytes:
        bucket = (int.from_bytes(row.id_bytes[-4:]) & 0x7FFFFFFF) % self._terms.bucket_count
        between = self._plain.get(bucket)
        if between is None:
            between = self._plain_settings(bucket)
            # What the first one has seen to is seen to.
            self._plain[bucket] = self._plain_settings(bucket)
        payload = row.payload.encode()
        return b"".join((_PLAIN, row.id_bytes, between, _length(len(payload) + 1), _JSONB_VERSION, payload))

    def _plain_settings(self, bucket: int) -> bytes:
        return self._queue + self._settings(bucket, 0, None, None, None, None, _NULL, ())

    def _packed(self, row: NewRow) -> bytes:
        columns = row.columns
        settings = self._settings(
            self._terms.bucket(columns["hash"], columns["region"]),
            columns["priority"],
            columns["run_at"],
            columns["max_attempts"],
            columns["region"],
            columns["timeout_seconds"],
            _NULL if row.job.backoff is None else _float8s([float(part) for part in astuple(row.job.backoff)]),
            row.job.tags,
        )
        payload = columns["payload"].encode()
        return b"".join(
            (
                *(_PLAIN, row.id.bytes, self._queue, settings),
                *(_length(len(payload) + 1), _JSONB_VERSION, payload),
            )
        )

    def _settings(
        self,
        bucket: int,
        priority: int,
        run_at: datetime | None,
        max_attempts: int | None,
        region: str | None,
        timeout_seconds: float | None,
        backoff: bytes,
        tags: Sequence[str],
    ) -> bytes:
        """The columns between a job's queue and its payload."""
        limit = self._terms.timeout_seconds if timeout_seconds is None else timeout_seconds
        due = self._due if run_at is None else _moment(run_at)
        return b"".join(
            (
                struct.pack("!ihih", 2, bucket, 2, priority),
                due,
                due,
                struct.pack("!ii", 4, max_attempts or self._terms.max_attempts),
                _text(region or "local"),
                _NULL if limit is None else struct.pack("!id", 8, limit),
                backoff,
                _texts(list(tags)),
                struct.pack("!i?i?", 1, self._keeps(priority), 1, self._wakes(bucket, run_at)),
            )
        )

    def _keeps(self, priority: int) -> bool:
        """Return whether the queue is kept for this job already, and its priority noted; the first one has it noted."""
        if priority in self._noted:
            return True
        self._noted.add(priority)
        return False

    def _wakes(self, bucket: int, run_at: datetime | None) -> bool:
        """Return whether this job is to wake a consumer: not if it is due, and another of its bucket has been."""
        if run_at is not None and run_at > self._terms.now:
            return True
        if bucket in self._woken:
            return False
        self._woken.add(bucket)
        return True


def _length(size: int) -> bytes:
    return size.to_bytes(4)


def _text(value: str) -> bytes:
    data = value.encode()
    return _length(len(data)) + data


def _moment(value: datetime) -> bytes:
    return struct.pack("!iq", 8, (value - _EPOCH) // _MICROSECOND)


def _float8s(values: Sequence[float]) -> bytes:
    return _array(_FLOAT8, [struct.pack("!id", 8, value) for value in values])


def _texts(values: Sequence[str]) -> bytes:
    return _array(_TEXT, [_text(value) for value in values])


def _array(oid: int, elements: Sequence[bytes]) -> bytes:
    # Of its dimensions the number, whether there is a NULL in it, its type; of the one its size, and where it begins.
    data = struct.pack("!iii", 0, 0, oid)
    if elements:
        data = struct.pack("!iiiii", 1, 0, oid, len(elements), 1) + b"".join(elements)
    return _length(len(data)) + data
