"""Ids: as callers give them, those of version 7 that are always the same for the same thing, and their buckets. No I/O."""

import hashlib
from datetime import datetime
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput


def bucket_hash(job_id: UUID, ordering_key: str | None) -> int:
    """The number whose remainder is the bucket: from the ordering key where there is one, else from the id's random end.

    A key's hash is the first four bytes of its SHA-256, the top bit cleared: every database and language can compute it.
    """
    if ordering_key is None:
        return int.from_bytes(job_id.bytes[-4:]) & 0x7FFFFFFF
    return int.from_bytes(hashlib.sha256(ordering_key.encode()).digest()[:4]) & 0x7FFFFFFF


def uuid_of(given: object) -> UUID | None:
    """Return an id that was given as a UUID or as the text of one; None for anything else."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given) if isinstance(given, str) else None
    except ValueError:
        return None


def stable_id(moment: datetime, text: str) -> UUID:
    """A job id that is always the same for the same thing, so that enqueuing the thing twice makes one job.

    Laid out as a version 7 UUID: 48 bits of the moment in milliseconds, by which ids sort, and 74 bits of the SHA-256
    of the text in place of the random ones.

    Args:
        moment: with a time zone, since 1970, in whole seconds: a rest is left out. It belongs to the thing (an event's
            time, the beginning of a period), never to the clock.
        text: what distinguishes the thing from all others, also from those of other queues.

    Raises:
        InvalidInput: the moment is no datetime, has no time zone or lies before 1970, or the text is none.
    """
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(
            f"the moment of an id is {moment!r}; give a datetime with a time zone, such as an event's own"
        )
    if moment.timestamp() < 0:
        raise InvalidInput(f"the moment of an id is {moment!r}; it must not lie before 1970")
    if not isinstance(text, str):
        raise InvalidInput(f"the text of an id is {text!r:.100}; give a text that names the thing")
    return _of(int(moment.timestamp()) * 1000, text.encode())


def derived_id(of: UUID, text: str) -> UUID:
    """An id that is always the same for the same thing of another id, whose 48 bits of time it takes over."""
    return _of(of.int >> 80, of.bytes + text.encode())


def _of(milliseconds: int, thing: bytes) -> UUID:
    digest = int.from_bytes(hashlib.sha256(thing).digest()[:10]) >> 6
    high, low = digest >> 62, digest & ((1 << 62) - 1)
    return UUID(int=milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)
