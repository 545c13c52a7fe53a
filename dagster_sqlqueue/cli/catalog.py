"""The commands of the program, so that its help and its completion need none of the modules that have them."""

import importlib
from typing import NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command, or a group of commands: what the program's help says about it."""

    name: str
    module: str
    """Of `dagster_sqlqueue.cli.commands`; its `register` makes the command."""
    panel: str
    """The heading of the program's help under which it is."""
    summary: str
    """The first paragraph of its own help."""

    def listed(self) -> TyperCommand:
        """What stands for it in a list: a name and a help, which does nothing."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def load(self) -> TyperCommand | TyperGroup:
        """Return the command itself; its module is imported."""
        part = typer.Typer()
        importlib.import_module(f"dagster_sqlqueue.cli.commands.{self.module}").register(part)
        found = typer.main.get_group(part).commands[self.name]
        assert isinstance(found, TyperCommand | TyperGroup)
        return found


ENTRIES = [
    Entry(
        "up",
        "up",
        "Set up",
        "Start a PostgreSQL server for a first try, with the tables in it, and run it until Ctrl-C or SIGTERM.",
    ),
    Entry(
        "migrate",
        "setup",
        "Set up",
        "Make the tables, or bring them up to date. Safe to run again, also while producers and consumers work.",
    ),
    Entry("create", "setup", "Set up", "Make a queue, or change the settings of one, while it runs."),
    Entry("queues", "setup", "Set up", "Show the queues and their settings."),
    Entry(
        "functions",
        "functions",
        "Set up",
        "Show the SQL functions that triggers, psql and other languages call, and whether they are those of this package.",
    ),
    Entry("enqueue", "enqueue", "Enqueue", "Enqueue one job, or many from standard input."),
    Entry(
        "schema", "schema", "Enqueue", "Print the JSON Schema of a queue's payloads, from the code. Needs no database."
    ),
    Entry(
        "publish",
        "topics",
        "Topics",
        "Publish a message to a topic, or many from standard input: each becomes a job for each subscription that it fits.",
    ),
    Entry(
        "subscribe",
        "topics",
        "Topics",
        "Make the messages of a topic that fit a filter jobs of a queue. Publishers need no change.",
    ),
    Entry("unsubscribe", "topics", "Topics", "Remove a subscription. The jobs that it has got stay."),
    Entry(
        "subscriptions",
        "topics",
        "Topics",
        "Show the subscriptions: which messages of which topic become jobs of which queue.",
    ),
    Entry(
        "follow",
        "followers",
        "Follow",
        "Put callbacks on other queues when a job has ended; at once, if it has. The same again changes nothing.",
    ),
    Entry(
        "group",
        "followers",
        "Follow",
        "Manage groups of jobs: one callback, put when the last of them has ended, with counts of how they ended.",
    ),
    Entry(
        "work",
        "work",
        "Consume",
        "Run a consumer with your functions as handlers, until stopped: for systemd, a container, or a terminal.",
    ),
    Entry("peek", "jobs", "Inspect", "Show the jobs that would be claimed next, without claiming them."),
    Entry("list", "jobs", "Inspect", "List jobs of a queue: all of them, or those that fit every condition."),
    Entry(
        "show",
        "jobs",
        "Inspect",
        "Show everything about one job, live or ended: state, progress, times, attempts, keys, error, payload, result.",
    ),
    Entry(
        "explain",
        "jobs",
        "Inspect",
        "Say why a job is not claimed: scheduled, paused, held, leased, behind its key, at a limit, or behind other jobs.",
    ),
    Entry(
        "dead",
        "jobs",
        "Inspect",
        "Show the dead letters: jobs that used up their attempts or were rejected, the latest first, with their errors.",
    ),
    Entry("wait", "results", "Inspect", "Wait until a job has ended, and show its result or error."),
    Entry(
        "stats",
        "stats",
        "Inspect",
        "Show how much each queue holds, how late it is, how fast it is, and what became of its jobs.",
    ),
    Entry(
        "metrics",
        "metrics",
        "Inspect",
        "Serve the queues' stats to Prometheus, until SIGTERM or Ctrl-C: what stats shows, with a query for each scrape.",
    ),
    Entry(
        "retry",
        "job_admin",
        "Decide about jobs",
        "Redrive dead letters: the same jobs, due now, with all their attempts.",
    ),
    Entry(
        "cancel",
        "job_admin",
        "Decide about jobs",
        "Cancel jobs: at once those that do not run; a running one is asked to end.",
    ),
    Entry(
        "hold",
        "job_admin",
        "Decide about jobs",
        "Hold queued jobs until an operator releases or cancels them. In an ordered queue their keys stop there.",
    ),
    Entry(
        "release",
        "job_admin",
        "Decide about jobs",
        "Release held jobs: due now, with the attempts that they have left.",
    ),
    Entry(
        "reschedule",
        "job_admin",
        "Decide about jobs",
        "Make queued jobs due at another moment, earlier or later than it was.",
    ),
    Entry(
        "reprioritise",
        "job_admin",
        "Decide about jobs",
        "Give jobs another priority. For a running job it counts when it goes back to the queue.",
    ),
    Entry(
        "delete",
        "job_admin",
        "Decide about jobs",
        "Delete jobs for good, with payload, result, error and history: ended ones, or live ones that do not run.",
    ),
    Entry(
        "purge",
        "job_admin",
        "Decide about jobs",
        "Empty a queue: delete every job that waits, due, scheduled or held. What runs goes on, the archive stays.",
    ),
    Entry(
        "pause",
        "queue_admin",
        "Run a queue",
        "Stop claims of a queue. What runs goes on; jobs can still be enqueued.",
    ),
    Entry("resume", "queue_admin", "Run a queue", "Allow claims of a paused queue again."),
    Entry(
        "rebucket",
        "queue_admin",
        "Run a queue",
        "Change the number of buckets of a queue, while producers and consumers run.",
    ),
    Entry(
        "region", "queue_admin", "Run a queue", "Give buckets of a queue to a region: its consumers claim there first."
    ),
    Entry(
        "maintain",
        "maintenance",
        "Maintain",
        "Do now what consumers do once an hour by themselves: make the partitions of the coming days, trim, remove what"
        " expired, heal ordering keys that stand still.",
    ),
    Entry(
        "trim",
        "maintenance",
        "Maintain",
        "Remove finished jobs that are older than their queue keeps them (--retention-days of `create`).",
    ),
    Entry(
        "batch",
        "batches",
        "Maintain",
        "Show the batches that Spark seals and publishes, and abandon or delete some.",
    ),
    Entry(
        "doctor",
        "doctor",
        "Maintain",
        "Check the database for what is wrong, or soon will be, and show a remedy for each finding.",
    ),
    Entry(
        "people",
        "people",
        "People",
        "Hand jobs over to people, who take, do and review them, and set how many run by themselves.",
    ),
    Entry(
        "schedule",
        "schedules",
        "Schedule",
        "Enqueue jobs by the clock: cron expressions in a time zone, and intervals.",
    ),
]
"""In the order of the help."""
