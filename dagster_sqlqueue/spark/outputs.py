"""The outputs of a consumption: staged where no reader sees them, made visible by the publishing transaction or right
after it.
"""

import contextlib
import fcntl
import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import psycopg
import pyarrow as pa

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import remote, sinks
from dagster_sqlqueue.spark.batches import Batch
from dagster_sqlqueue.spark.stage_table import Staged, connected, fingerprint
from dagster_sqlqueue.spark.target_table import Target

logger = logging.getLogger("dagster_sqlqueue")

STAGING = ".staging"
"""Below a directory of results."""
_LOCK = ".lock"

# Values of one of these types are equal in the database if and only if they are in Python; texts, in a column of texts.
_EXACT = {bool, int, date, UUID, str}
_TEXTS = ("text", "character varying")

Replace: TypeAlias = Mapping[str, Sequence[Any]]
"""What rows take the place of, as users say it: one column, and its values."""


class Output(Protocol):
    """One result of a consumption."""

    def write(self, connection: "psycopg.Connection[Any]") -> None:
        """Write, within the publishing transaction."""

    def finish(self) -> None:
        """Do what follows the transaction. May be repeated."""

    def drop(self) -> None:
        """Remove what was staged and will not be published."""

    def place(self) -> dict[str, Any]:
        """Return where it is, as the batch keeps it."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a SQL table: the driver's own, or staged by tasks.

    Attributes:
        target: the table; made if it is not there.
        rows: what to write.
        schema: the columns.
        key: the primary key of a table that is made.
        replace: which rows the new ones take the place of: a column, and its values, None for NULL. None: none.
    """

    target: Target
    rows: pa.Table | Staged
    schema: pa.Schema
    key: Sequence[str]
    replace: sinks.Replaced | None

    def write(self, connection: "psycopg.Connection[Any]") -> None:
        """Delete what is replaced, and insert."""
        table = self.target.name
        if isinstance(self.rows, Staged):
            with sinks.taking(table):
                identifier = sinks.prepare_table(connection, table, self.schema, self.key, self.replace)
                self.rows.move(connection, identifier)
        elif self.replace is not None:
            column, values = self.replace
            sinks.replace_days(connection, table, self.rows, column, self.key, values)
        else:
            sinks.append_rows(connection, table, self.rows, self.key)

    def finish(self) -> None:
        """Nothing: the transaction did it all."""

    def drop(self) -> None:
        """Remove the stage."""
        if isinstance(self.rows, Staged):
            with connected(self.rows.url, autocommit=True) as connection:
                self.rows.drop(connection)

    def place(self) -> dict[str, Any]:
        """Return the table."""
        return {"table": self.target.name}


@dataclass(frozen=True)
class Files:
    """Parquet files, a directory for each part of the results.

    Attributes:
        staged: where they are now: a directory for each name.
        output: where they go; a directory of the same name there is replaced as a whole.
        names: of the directories.
    """

    staged: Path
    output: Path
    names: Sequence[str]

    def write(self, connection: "psycopg.Connection[Any]") -> None:
        """Nothing: they are staged already."""

    def finish(self) -> None:
        """Move them into place."""
        sinks.move_into_place(self.staged, self.output, self.names)

    def finish_if_seen(self) -> bool:
        """Move them into place, if they are not. Returns whether they are: False if this process has no access to where
        they were staged.
        """
        if not self.staged.parent.is_dir():
            return False
        self.finish()
        return True

    def drop(self) -> None:
        """Remove them."""
        shutil.rmtree(self.staged, ignore_errors=True)

    def place(self) -> dict[str, Any]:
        """Where they were staged, and where they go."""
        return {"staged": str(self.staged), "output": str(self.output), "directories": list(self.names)}


@dataclass(frozen=True)
class RemoteFiles:
    """The same on a file system that is not this machine's, such as an object store.

    Attributes:
        staged: where they are now, as a URL.
        output: where they go.
        names: of the directories.
    """

    staged: str
    output: str
    names: Sequence[str]

    def write(self, connection: "psycopg.Connection[Any]") -> None:
        """Nothing: they are staged already."""

    def finish(self) -> None:
        """Move them into place."""
        remote.move_into_place(self.staged, self.output)

    def finish_if_seen(self) -> bool:
        """Move them into place, if they are not. Returns whether they are: False if this process has no access to them."""
        try:
            self.finish()
        except remote.UNREACHABLE as error:
            logger.warning("%s cannot be reached: %s", self.staged, error)
            return False
        return True

    def drop(self) -> None:
        """Remove them, or leave them to the next run of the key if they cannot be reached."""
        try:
            remote.remove(self.staged)
        except remote.UNREACHABLE as error:
            logger.warning("%s cannot be removed: %s", self.staged, error)

    def place(self) -> dict[str, Any]:
        """Where they were staged, and where they go."""
        return {"staged": self.staged, "output": self.output, "directories": list(self.names)}


Moved: TypeAlias = Files | RemoteFiles
"""What is moved into place after the transaction."""


def files_of(place: Mapping[str, Any]) -> list[Moved]:
    """Return the files that a published batch's output lists."""
    found: list[Moved] = []
    for one in place.get("outputs", []):
        if "staged" in one and remote.is_url(one["staged"]):
            found.append(RemoteFiles(one["staged"], one["output"], one["directories"]))
        elif "staged" in one:
            found.append(Files(Path(one["staged"]), Path(one["output"]), one["directories"]))
    return found


def staged_files(output: Path | str, name: str, write: Callable[[Path], Sequence[str]]) -> Moved:
    """Stage files below a directory of their own.

    Args:
        output: where they go in the end: a directory, or the URL of one.
        name: of the directory they are staged in.
        write: is given that directory, or one of this machine's in its place, and returns the names of the directories
            in it.

    Raises:
        OutputNotWritable: nothing can be written there.
    """
    if isinstance(output, str):
        staged_at = f"{output}/{STAGING}/{name}"
        with tempfile.TemporaryDirectory(prefix="sqlqueue-") as here:
            home = Path(here) / STAGING / name
            home.mkdir(parents=True)
            names = write(home)
            remote.upload(home, staged_at, names)
        return RemoteFiles(staged_at, output, names)
    staged = output / STAGING / name
    try:
        staged.mkdir(parents=True)
        return Files(staged, output, write(staged))
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError):
            raise sinks.not_writable(output, error) from None
        raise


def check_apart(output: Path | str, names: Iterable[str], earlier: Iterable[Output]) -> None:
    """Check that files would replace nothing that is published together with them.

    Args:
        output: where they go.
        names: of their directories.
        earlier: what is published together with them.

    Raises:
        InvalidInput: they would.
    """
    for one in earlier:
        if not isinstance(one, Files | RemoteFiles) or _there(one.output) != _there(output):
            continue
        if both := sorted(set(one.names).intersection(names)):
            raise InvalidInput(
                f"{both[0]} in {output} was written before in this block, and would be replaced by what is written"
                " now: write all its rows at once (union), or to different directories"
            )


def one_column(replace: Replace | None) -> sinks.Replaced | None:
    """Return the column by which rows are replaced, and the values of those.

    Raises:
        InvalidInput: there are several columns, or none, or the values are no list.
    """
    if replace is None:
        return None
    if not isinstance(replace, Mapping):
        raise InvalidInput(
            f"replace is {replace!r:.100}; map one column to a list of its values, whose rows go: {{'day': days}}"
        )
    if len(replace) != 1:
        raise InvalidInput(
            f"rows are replaced by one column, not by {len(replace)}; give one, with the values whose rows go"
        )
    column, values = next(iter(replace.items()))
    if isinstance(values, str) or not isinstance(values, Collection):
        raise InvalidInput(
            f"rows are replaced by the values of {column!r}, which are {values!r:.100}; give a list: {{{column!r}: [value]}}"
        )
    return column, values


def check_kept(target: Target, replace: sinks.Replaced | None, earlier: Iterable[Output]) -> None:
    """Check that rows of a table would delete none that are published together with them.

    They cannot where both replace values of the same column, and no value is the same in the database.

    Args:
        target: the table.
        replace: the column and the values whose rows they take the place of; None: none.
        earlier: what is published together with them, and written before.

    Raises:
        InvalidInput: they would, or might.
    """
    if replace is None:
        return
    column, values = replace
    for one in earlier:
        if not isinstance(one, TableRows) or one.target.place != target.place:
            continue
        if (
            one.replace is None
            or one.replace[0] != column
            or not _apart(target, one.schema, column, one.replace[1], values)
        ):
            raise InvalidInput(
                f"the table {target.name!r} was written before in this block, and replacing rows by {column!r} would delete"
                f" what was written: write all its rows at once (union), or by other values of {column!r} each"
            )


def _apart(target: Target, schema: pa.Schema, column: str, some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether no value of one list can be equal in the database to one of the other."""
    kinds = {type(value) for value in (*some, *others) if value is not None}
    if len(kinds) > 1 or not kinds <= _EXACT:
        return False
    if kinds == {str} and not target.type_of(column, schema).startswith(_TEXTS):
        return False
    return not set(some).intersection(others)


def _there(output: Path | str) -> Path | str:
    return output if isinstance(output, str) else output.resolve()


@contextlib.contextmanager
def own_name(output: Path | str, asset: str, run_id: str) -> Iterator[str]:
    """Yield the name to stage files under where no batch gives one. What killed runs of the asset left is removed, in a
    directory of this machine's.

    A run holds a lock on a file beside its directory, which ends with the run however that ends.

    Raises:
        OutputNotWritable: nothing can be written there.
    """
    name = f"{asset}-{run_id}"
    if isinstance(output, str):
        yield name
        return
    staging = output / STAGING
    try:
        staging.mkdir(parents=True, exist_ok=True)
        for left in staging.glob(f"{asset}-*{_LOCK}"):
            with contextlib.suppress(OSError), left.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.with_suffix(""), ignore_errors=True)
                left.unlink()
        mark = staging / f"{name}{_LOCK}"
        held = mark.open("w")
    except OSError as error:
        raise sinks.not_writable(output, error) from None
    with held:
        with contextlib.suppress(OSError):  # a file system without locks: what is left there stays
            fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield name
        finally:
            mark.unlink(missing_ok=True)


def staged_name(batch: Batch) -> str:
    """What the names of everything begin with that a batch's owner stages."""
    return f"{fingerprint(batch.key)}-{batch.id}-{batch.token}"


def discard_earlier(output: Path | str, batch: Batch) -> None:
    """Remove what killed runs of the batch's key left staged. Call it while the batch is ours."""
    if isinstance(output, str):
        for found in remote.names_in(f"{output}/{STAGING}"):
            if found.startswith(f"{fingerprint(batch.key)}-") and not found.startswith(f"{staged_name(batch)}-"):
                remote.remove(f"{output}/{STAGING}/{found}")
        return
    for staged in (output / STAGING).glob(f"{fingerprint(batch.key)}-*"):
        if not staged.name.startswith(f"{staged_name(batch)}-"):
            shutil.rmtree(staged, ignore_errors=True)
