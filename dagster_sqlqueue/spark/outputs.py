"""What a consumption writes: staged where nobody looks, made visible by the publishing transaction or right after it."""

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql

from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.batches import Batch
from dagster_sqlqueue.spark.staging import Staged, fingerprint
from dagster_sqlqueue.spark.urls import libpq

STAGING = ".staging"
"""Below a directory of results."""
_LOCK = ".lock"


class Output(Protocol):
    """One result of a consumption."""

    def write(self, connection: "psycopg.Connection[Any]") -> None:
        """Write what belongs into the publishing transaction."""

    def finish(self) -> None:
        """Do what follows the transaction. May be repeated."""

    def drop(self) -> None:
        """Remove what was staged and is not to be published."""

    def place(self) -> dict[str, Any]:
        """Where it is, as the batch keeps it."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a SQL table: the driver's own, or staged by tasks.

    Attributes:
        table: `table` or `schema.table`; made if it is not there.
        rows: what to write.
        schema: the columns.
        key: the primary key of a table that is made.
        replace: which rows the new ones take the place of: a column, and its values. None: none.
    """

    table: str
    rows: pa.Table | Staged
    schema: pa.Schema
    key: Sequence[str]
    replace: tuple[str, Sequence[Any]] | None

    def write(self, connection: "psycopg.Connection[Any]") -> None:
        """Delete what is replaced, and insert."""
        if isinstance(self.rows, Staged):
            rows = self.rows
            with sinks.taking(self.table):
                target = sinks.prepare_table(connection, self.table, self.schema, self.key, self.replace)
                rows.move(connection, target)
        elif self.replace is not None:
            column, values = self.replace
            sinks.replace_days(connection, self.table, self.rows, column, self.key, values)
        else:
            sinks.append_rows(connection, self.table, self.rows, self.key)

    def finish(self) -> None:
        """Nothing: the transaction did it all."""

    def drop(self) -> None:
        """Remove the stage."""
        if isinstance(self.rows, Staged):
            with psycopg.connect(libpq(self.rows.url), autocommit=True) as connection:
                self.rows.drop(connection)

    def place(self) -> dict[str, Any]:
        """The table."""
        return {"table": self.table}


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
        """Move them into place, if they are not; whether they are: false where this process does not see where they were
        staged.
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


def files_of(place: Mapping[str, Any]) -> list[Files]:
    """The files that a published batch's output lists."""
    return [
        Files(Path(one["staged"]), Path(one["output"]), one["directories"])
        for one in place.get("outputs", [])
        if "staged" in one
    ]


def staged_files(output: Path, name: str, write: Callable[[Path], Sequence[str]]) -> Files:
    """Have files written below a staging directory of their own.

    Args:
        output: where they go in the end.
        name: of the directory they are staged in.
        write: is given that directory, and gives the names of the directories in it.

    Raises:
        OutputNotWritable: nothing can be written there.
    """
    staged = output / STAGING / name
    try:
        staged.mkdir(parents=True)
        return Files(staged, output, write(staged))
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError):
            raise sinks.not_writable(output, error) from None
        raise


def check_apart(output: Path, names: Iterable[str], earlier: Iterable[Output]) -> None:
    """See that files would take the place of nothing that is to be published with them.

    Args:
        output: where they go.
        names: of their directories.
        earlier: what is to be published with them.

    Raises:
        InvalidInput: they would.
    """
    for one in earlier:
        if not isinstance(one, Files) or one.output.resolve() != output.resolve():
            continue
        if both := sorted(set(one.names).intersection(names)):
            raise InvalidInput(
                f"{both[0]} in {output} was written before in this block, and would be replaced by what is written"
                " now: write all its rows at once (union), or to different directories"
            )


@contextlib.contextmanager
def own_name(output: Path, asset: str, run_id: str) -> Iterator[str]:
    """The name to stage files under where no batch gives one. What killed runs of the asset left is removed.

    A run holds a lock on a file beside its directory, which ends with the run however that ends.

    Raises:
        OutputNotWritable: nothing can be written there.
    """
    staging, name = output / STAGING, f"{asset}-{run_id}"
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


def discard_earlier(output: Path, batch: Batch) -> None:
    """Remove what killed runs of the batch's key left staged. Call it while the batch is ours."""
    for staged in (output / STAGING).glob(f"{fingerprint(batch.key)}-*"):
        if not staged.name.startswith(f"{staged_name(batch)}-"):
            shutil.rmtree(staged, ignore_errors=True)


def check_table(queue: SqlQueue, table: str) -> None:
    """See that results can be written to a table, or that it can be made.

    Args:
        queue: in whose database it is.
        table: its name, `table` or `schema.table`.

    Raises:
        InvalidInput: its name is not usable.
        OutputNotWritable: the user may not write to it, or may not make it.
    """
    name = sinks.table_identifier(table)
    *schema, _ = table.split(".")
    quoted = sql.Identifier(schema[0]).as_string(None) if schema else None
    ((there, may_write, schema_there, may_make),) = queue.database.run(
        "spark_output_table", {"table_name": name.as_string(None), "schema_name": quoted}
    )
    if not schema_there:
        raise OutputNotWritable(
            f"results cannot be written to table {table!r}: there is no schema {schema[0]!r}. Make it"
        )
    if not may_write:
        raise OutputNotWritable(
            f"results cannot be written to table {table!r}: the database's user may not write to it. Grant INSERT"
            " and DELETE on it"
        )
    if not there and not may_make:
        raise OutputNotWritable(
            f"results cannot be written to table {table!r}: it is not there, and the database's user may not make it in"
            f" schema {schema[0]!r}. Make the table, or grant CREATE on the schema"
        )
