"""Split a read into slices of about equally many rows, and these among tasks."""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise

from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.conditions import Test, finished_range
from dagster_sqlqueue.spark.cuts import STEP, Cut, between
from dagster_sqlqueue.spark.literals import moment
from dagster_sqlqueue.spark.options import (
    batch_ids,
    by_bucket,
    by_snapshot,
    keeping,
    number,
    state_of,
    target_rows,
)
from dagster_sqlqueue.spark.sealed_read import by_id
from dagster_sqlqueue.spark.shares import Share, Slice, grouped
from dagster_sqlqueue.spark.snapshot import keep

_MOST = 1_000
"""Slices of a read."""
_SAMPLED_PAGES, _MOST_PAGES = 500, 20_000
"""Of the archive, where it has more, slices are cut by a sample of so many pages: to count the entries of its index took a
fifth of the time of the whole read.
"""
_PAGES_OF_A_SLICE, _ROWS_OF_A_PAGE = 20, 30


def shares(queue: SqlQueue, url: str, options: Mapping[str, str], pushed: Sequence[Test]) -> list[Share]:
    """Return the tasks of a read; one that reads nothing where there is nothing.

    Raises:
        UnknownQueue: the queue does not exist.
        InvalidInput: no snapshot can be taken.
        DatabaseUnavailable, SchemaMissing: see the classes.
    """
    queue.settings(options["queue"])
    server = int(queue.database.run("spark_server", {})[0][0])
    limit = number(options, "limit")
    archive = state_of(options) == "archive"
    held = json.dumps({str(id): None for id in batch_ids(options)}) if state_of(options) == "batch" else ""
    if limit is not None:
        order = "ORDER BY finished_at " if archive else ""
        low, high = finished_range(options, pushed)
        part = [Slice(_between(low, high) if archive else "TRUE")]
        return [Share(part, server, held=held, tail=f"{order}LIMIT {limit}")]
    snapshot = None
    slices = [] if archive else _apart(_bucket_slices(queue, options))
    # A single statement is a snapshot by itself.
    if by_snapshot(options) and (archive or len(slices) > 1):
        snapshot = keep(url, queue.database.schema, number(options, "snapshot_seconds") or 0, keeping(options))
    if archive:
        slices = _archive_slices(queue, options, pushed)
    most = number(options, "max_connections") or len(slices)
    shares = [[one for together in part for one in together] for part in grouped(slices, most)]
    return [Share(part, server, snapshot, held=held) for part in shares] or [Share([])]


def _apart(slices: Sequence[Slice]) -> list[Sequence[Slice]]:
    return [[one] for one in slices]


def _bucket_slices(queue: SqlQueue, options: Mapping[str, str]) -> list[Slice]:
    if state_of(options) == "batch":
        these = {"batch_ids": batch_ids(options)}
        found = queue.database.run("spark_batch_buckets", these)
        if max((count for _, count in found), default=0) > target_rows(options):
            step = max(target_rows(options), -(-sum(count for _, count in found) // _MOST))
            cuts = queue.database.run("spark_batch_cuts", {**these, "step": step})
            return [Slice(one) for one in by_id([str(id) for (id,) in cuts])]
    else:
        found = queue.database.run("spark_live_buckets", {"queue": options["queue"]})
    starts: list[int] = []
    rows = target = target_rows(options)
    for bucket, count in found:
        if rows >= target:
            starts.append(bucket)
            rows = 0
        rows += count
    return _by_bucket(starts or [0])


def _by_bucket(starts: Sequence[int]) -> list[Slice]:
    """Open at both ends: of what comes into a bucket that was empty nothing is left out."""
    if len(starts) == 1:
        return [Slice("TRUE")]
    inner = [f"bucket >= {low} AND bucket < {high}" for low, high in pairwise(starts[1:])]
    return [Slice(one) for one in (f"bucket < {starts[1]}", *inner, f"bucket >= {starts[-1]}")]


def _archive_slices(queue: SqlQueue, options: Mapping[str, str], pushed: Sequence[Test]) -> list[Sequence[Slice]]:
    """Each together with what else one task is to read for about as many rows as another."""
    name = options["queue"]
    start, until = finished_range(options, pushed)
    ((first, last),) = queue.database.run("spark_bounds", {"queue": name, "from_time": start, "until_time": until})
    if first is None:
        return []
    ends = {"queue": name, "first": first, "last": last}
    days = queue.database.run("spark_days", ends)
    there = {day: (partition, oid) for day, partition, oid, _ in days}
    if by_bucket(options):
        count = queue.settings(name).bucket_count
        bounds = _between(first, last + STEP)
        buckets = _by_bucket(range(count))
        return _apart([Slice(f"{bounds} AND {one.condition}", tuple(there.values())) for one in buckets])
    pages = sum(count for *_, count in days)
    step = target_rows(options)
    wanted = max(_SAMPLED_PAGES, pages * _PAGES_OF_A_SLICE * _ROWS_OF_A_PAGE / step)
    percent = min(100.0, 100 * min(wanted, _MOST_PAGES) / max(pages, 1))
    sampled = queue.database.run("spark_slices", {**ends, "step": step, "percent": percent})
    found = list(dict.fromkeys(Cut(at, row) for at, row in sampled))
    count = min(len(found), _MOST)
    edges = [Cut(first), *(found[len(found) * n // count] for n in range(1, count)), Cut(last + STEP)]
    return [_slices(there, low, high) for low, high in pairwise(edges)]


def _slices(there: Mapping[date, tuple[str, str]], low: Cut, high: Cut) -> list[Slice]:
    days = tuple(one for day, one in there.items() if low.at.date() <= day <= high.last.date())
    return [Slice(condition, days) for condition in between(low, high)]


def _between(low: datetime | None, high: datetime | None) -> str:
    parts = [f"finished_at {sign} {moment(edge)}" for sign, edge in ((">=", low), ("<", high)) if edge is not None]
    return " AND ".join(parts) or "TRUE"
