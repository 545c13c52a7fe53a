"""The main job, end to end, on real flights, through a real daemon, with the result checked."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pandas as pd
import pyarrow.dataset as ds
from psycopg import sql
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dagster_sqlqueue import NewJob
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.spark.sinks import table_identifier
from definitions.daily_analytics import TABLE, airport_daily, daily_analytics, output_directory
from definitions.deployment import WORKSPACE, Deployment, deployment, running
from definitions.events import events, handle_flight
from definitions.expected import differences, expected_numbers, expected_reminders, reminder_differences
from definitions.flights import airport_name, count_flights, job_id, read_flights
from definitions.last_runs import end_runs
from definitions.reminder_day import ended_reminders, put_reminders
from definitions.reminders import additions, reminders, send_reminder

STALL_SECONDS = 600.0
_EVERYTHING = 1_000_000


class DemoFailed(QueueError):
    """The demo did not reach its end; the message says where and why."""


@dataclass(slots=True)
class Stages:
    """The seconds that each stage took, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block."""
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began


def run(console: Console, first: date, last: date) -> None:
    """Run every stage, from the database's start to the checked table."""
    stages = Stages()
    began = time.monotonic()
    console.print(f"[bold]dagster-sqlqueue[/]: the flights of {first} to {last}\n")
    with ExitStack() as stack:
        with stages.timed("database and schema"):
            at = stack.enter_context(deployment())
        progress = stack.enter_context(_progress(console))
        _stages(at, stages, progress, first, last)
        with stages.timed("check against the source"):
            rows = _check(at, first, last)
            sent = _check_reminders(at, last)
        stages.notes["reminders (each at its moment)"] = _reminders_note(sent)
        dead = at.queue.dead_letters(events.name, limit=1)
    _report(console, stages, rows, len(sent), last, time.monotonic() - began)
    if dead:
        reason = (dead[0].error or "").splitlines()[0]
        console.print(f"\nLatest dead letter: [yellow]{escape(reason)}[/]", highlight=False)
    console.print(
        "\nNext: [bold]make ui[/] opens the same deployment in the Dagster UI."
        f"\nResults: SQL table {TABLE}; Parquet in {output_directory()}; the daemon's log in"
        f" {at.dagster_home / 'daemon.log'}",
        highlight=False,
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _stages(at: Deployment, stages: Stages, progress: Progress, first: date, last: date) -> None:
    with stages.timed("enqueue"):
        total = count_flights(first, last)
        task = progress.add_task("enqueue flights", total=total)
        flights = (
            NewJob(flight, id=job_id(flight)) for flight in progress.track(read_flights(first, last), task_id=task)
        )
        enqueued = at.queue.enqueue_many(events, flights)
    speed = enqueued.inserted / stages.seconds["enqueue"]
    already = f", {enqueued.duplicates:,} there already" if enqueued.duplicates else ""
    stages.notes["enqueue"] = f"{enqueued.inserted:,} jobs, {speed:,.0f} jobs/s{already}"
    days = [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
    log = at.dagster_home / "daemon.log"
    with dg.DagsterInstance.from_config(str(at.dagster_home)) as instance:
        if _all_done(at, instance, days, last):
            stages.notes["enqueue"] += "; everything was worked off already"
            return
        began = datetime.now(UTC)
        with running(["dagster-daemon", "run", "-w", str(WORKSPACE)], at.environment, log) as daemon:
            with stages.timed("drain (sensor, runs)"):
                task = progress.add_task("work off events", total=at.queue.depth(events.name, cap=_EVERYTHING).live)
                for left in _watch(
                    daemon, at, instance, began, lambda: at.queue.depth(events.name, cap=_EVERYTHING).live
                ):
                    progress.update(task, completed=(progress.tasks[task].total or 0) - left)
            ended = at.queue.archived(events.name, since_seconds=86_400, cap=_EVERYTHING)
            stages.notes["drain (sensor, runs)"] = ", ".join(
                f"{count:,} {state}" for state, count in sorted(ended.items())
            )
            with stages.timed("reminders (each at its moment)"):
                put_reminders(at.queue, last)
                total = at.queue.depth(reminders.name, cap=_EVERYTHING).live
                task = progress.add_task(f"send the reminders of {last}", total=total)
                for left in _watch(
                    daemon, at, instance, began, lambda: at.queue.depth(reminders.name, cap=_EVERYTHING).live
                ):
                    progress.update(task, completed=total - left)
            with stages.timed("daily analytics (schedule, Spark)"):
                task = progress.add_task("fan out and consume with Spark", total=len(days))
                for left in _watch(daemon, at, instance, began, lambda: len(_missing(at, instance, days))):
                    progress.update(task, completed=len(days) - left)
            with stages.timed("end of the last runs"):
                end_runs(instance, {handle_flight.job.name, send_reminder.job.name}, STALL_SECONDS)
        stages.notes["daily analytics (schedule, Spark)"] = _spark_note(instance, len(days))


def _runs(instance: dg.DagsterInstance) -> list[tuple[str, dg.DagsterRunStatus]]:
    return [(run.run_id, run.status) for run in instance.get_runs(limit=20)]


_FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}


def _all_done(at: Deployment, instance: dg.DagsterInstance, days: list[str], last: date) -> bool:
    if any(at.queue.depth(spec.name).live for spec in (events, reminders)) or _missing(at, instance, days):
        return False
    return len(ended_reminders(at.queue, last)) >= count_flights(last, last)


def _missing(at: Deployment, instance: dg.DagsterInstance, days: list[str]) -> set[str]:
    missing = set(days) - instance.get_materialized_partitions(airport_daily.key)
    return missing or (set(days[-1:]) if at.queue.depth(daily_analytics.name).live else set())


def _watch(
    daemon: "subprocess.Popen[bytes]",
    at: Deployment,
    instance: dg.DagsterInstance,
    began: datetime,
    left: Callable[[], int],
) -> Iterator[int]:
    """Watch a count fall to 0; raise if the daemon ends, a run fails, or neither the count nor a run moves for long."""
    best, moved = (left(), _runs(instance)), time.monotonic()
    while best[0]:
        yield best[0]
        time.sleep(0.5)
        if daemon.poll() is not None:
            raise DemoFailed(f"the Dagster daemon ended by itself:\n{_tail(at)}")
        if failed := _failure(instance, began) or _dead_day(at):
            raise DemoFailed(failed)
        now = (left(), _runs(instance))
        if now != best:
            best, moved = now, time.monotonic()
        elif time.monotonic() - moved > STALL_SECONDS:
            raise DemoFailed(f"nothing moved for {STALL_SECONDS:.0f} s; the daemon's log ends with:\n{_tail(at)}")
    yield 0


def _failure(instance: dg.DagsterInstance, began: datetime) -> str | None:
    """The error of a failed run. One whose process was lost has none: the next tick replaces it."""
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=began)
    for run in instance.get_runs(failed, limit=20):
        for record in instance.all_logs(run.run_id, of_type=_FAILURES):
            event = record.dagster_event
            if event is None:
                continue
            # A run that was marked as failed from outside has no data.
            error = getattr(event.event_specific_data, "error", None)
            while error is not None and error.cause is not None:
                error = error.cause
            if error is not None:
                return f"run {run.run_id} of {run.job_name} failed: {error.message.strip()}"
    return None


def _dead_day(at: Deployment) -> str | None:
    for letter in at.queue.dead_letters(daily_analytics.name, limit=1):
        reason = (letter.error or "").splitlines()[0]
        return f"the daily job {letter.unique_key} ended in the dead letter ({reason}); its day cannot be completed"
    return None


def _tail(at: Deployment, lines: int = 30) -> str:
    log = at.dagster_home / "daemon.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def _spark_note(instance: dg.DagsterInstance, days: int) -> str:
    records = instance.get_run_records(dg.RunsFilter(job_name=f"materialize_{airport_daily.key.path[-1]}"), limit=1)
    if not records or records[0].start_time is None or records[0].end_time is None:
        return ""
    return f"{days} days in one run of {records[0].end_time - records[0].start_time:.0f} s, JVM start included"


def _check(at: Deployment, first: date, last: date) -> pd.DataFrame:
    expected = expected_numbers(first, last)
    files = ds.dataset(output_directory(), partitioning="hive", exclude_invalid_files=False).to_table().to_pandas()
    chosen = files["day"].astype(str).between(first.isoformat(), last.isoformat())
    with at.queue.database.connection() as connection:
        query = sql.SQL("SELECT * FROM {} WHERE day BETWEEN %s AND %s").format(table_identifier(TABLE))
        cursor = connection.execute(query, (first, last))
        columns = [column.name for column in cursor.description or []]
        table = pd.DataFrame(cursor.fetchall(), columns=columns)
    for name, actual in (("SQL table", table), ("Parquet files", files[chosen])):
        if wrong := differences(actual, expected):
            raise DemoFailed(f"the {name} differs from the source files:\n" + "\n".join(wrong))
    return table


def _check_reminders(at: Deployment, day: date) -> pd.DataFrame:
    """Read how the day's reminders ended; for accounts with an address added by hand, either end is right."""
    ended, expected = ended_reminders(at.queue, day), expected_reminders(day)
    added = additions()
    if wrong := reminder_differences(ended[~ended["account"].isin(added)], expected[~expected["account"].isin(added)]):
        raise DemoFailed("the reminders differ from the source files:\n" + "\n".join(wrong))
    return ended


def _reminders_note(ended: pd.DataFrame) -> str:
    count = ended["ending"].value_counts()
    return (
        f"{count.get('succeeded', 0):,} sent ({ended['put_off'].sum():,} put off, {(ended['attempts'] > 1).sum():,} tried"
        f" again), {count.get('cancelled', 0):,} called off, {count.get('failed', 0):,} without an address; half within"
        f" {ended['wait'].median():.2f} s of their moment"
    )


def _report(console: Console, stages: Stages, rows: pd.DataFrame, sent: int, day: date, seconds: float) -> None:
    console.print()
    console.print(_busiest(rows, day, console.width))
    console.print()
    times = Table(title="Stages", show_footer=True)
    times.add_column("stage", footer="in all")
    times.add_column("seconds", justify="right", footer=f"{seconds:.1f}")
    times.add_column("", footer=f"{len(rows):,} rows and {sent:,} reminders equal to the source files")
    for name, took in stages.seconds.items():
        times.add_row(name, f"{took:.1f}", stages.notes.get(name, ""))
    console.print(times)


_WIDE = 100
"""Characters that have room for the longest name of an airport."""


def _busiest(rows: pd.DataFrame, day: date, width: int) -> Table:
    """The day's ten busiest destinations, one line each: on a narrow terminal long names are cut."""
    table = Table(
        title=f"airport_daily of {day}: the ten busiest of {rows['account'].nunique()} destinations",
        caption="delays in minutes",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        width=min(width, _WIDE),
    )
    table.add_column("airport", no_wrap=True, ratio=1)
    for heading in ("flights", "cancelled", "mean\ndelay", "p95\ndelay", "busiest\nhour", "carrier"):
        table.add_column(heading, no_wrap=True, width=max(map(len, heading.split())), justify="right")
    top = rows[rows["day"] == day].sort_values(["flights", "account"], ascending=[False, True]).head(10)
    for row in top.to_dict("records"):
        table.add_row(
            f"{row['account']} {airport_name(str(row['account']))}",
            str(row["flights"]),
            str(row["cancelled"]),
            f"{row['mean_arr_delay']:.1f}",
            f"{row['p95_arr_delay']:.0f}",
            f"{row['busiest_hour']}:00",
            str(row["top_carrier"]),
        )
    return table
