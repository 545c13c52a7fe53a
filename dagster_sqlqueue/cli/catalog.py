"""The commands of the program, listed so that its help and its completion need not import their modules."""

import importlib
from typing import NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command, or a group of commands: what the program's help says about it."""

    name: str
    module: str
    """The module of `dagster_sqlqueue.cli.commands` whose `register` adds the command."""
    panel: str
    """The heading in the program's help under which it is listed."""
    summary: str
    """The first paragraph of its own help."""

    def listed(self) -> TyperCommand:
        """Return its placeholder in a list: a command with a name and a help, which does nothing."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def load(self) -> TyperCommand | TyperGroup:
        """Import its module, and return the command itself."""
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
        "Run an embedded PostgreSQL server, with the schema installed, until Ctrl-C or SIGTERM.",
    ),
    Entry(
        "migrate",
        "migration",
        "Set up",
        "Create the schema, or upgrade it.",
    ),
    Entry("create", "queues", "Set up", "Create a queue, or change the settings of an existing one while it runs."),
    Entry("queues", "queues", "Set up", "List the queues and their settings."),
    Entry(
        "functions",
        "functions",
        "Set up",
        "List the SQL functions for triggers, psql and other languages, and whether they are current.",
    ),
    Entry("enqueue", "enqueue", "Enqueue", "Enqueue one job, or one for each line of standard input."),
    Entry("schema", "schema", "Enqueue", "Print the JSON Schema of a queue's payloads, from the code."),
    Entry(
        "publish",
        "topics",
        "Topics",
        "Publish a message to a topic, or one for each line of standard input.",
    ),
    Entry(
        "subscribe",
        "topics",
        "Topics",
        "Enqueue the messages of a topic that match a filter as jobs of a queue.",
    ),
    Entry("unsubscribe", "topics", "Topics", "Remove a subscription; its jobs stay."),
    Entry(
        "subscriptions",
        "topics",
        "Topics",
        "List the subscriptions, with their filters and queues.",
    ),
    Entry(
        "follow",
        "followers",
        "Follow",
        "Enqueue callbacks on other queues when a job has ended.",
    ),
    Entry(
        "group",
        "followers",
        "Follow",
        "Manage groups of jobs: one callback, enqueued when the last of them has ended, with counts of how they ended.",
    ),
    Entry(
        "work",
        "work",
        "Consume",
        "Run consumers outside of Dagster, with your functions as handlers, until stopped.",
    ),
    Entry("peek", "jobs", "Inspect", "List the jobs that would be claimed next, without claiming them."),
    Entry("list", "jobs", "Inspect", "List the jobs of a queue: all of them, or those that match every condition."),
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
        "List the dead letters with their errors, the latest first.",
    ),
    Entry("wait", "results", "Inspect", "Wait until a job has ended, and show its result or error."),
    Entry(
        "stats",
        "stats",
        "Inspect",
        "Show how many jobs each queue holds, its lag, its throughput, and how its jobs ended.",
    ),
    Entry(
        "metrics",
        "metrics",
        "Inspect",
        "Serve the statistics of `stats` to Prometheus, until SIGTERM or Ctrl-C.",
    ),
    Entry(
        "retry",
        "job_admin",
        "Decide about jobs",
        "Redrive dead letters: the same jobs, due now, with a full set of attempts.",
    ),
    Entry(
        "cancel",
        "job_admin",
        "Decide about jobs",
        "Cancel waiting jobs, and ask running ones to end.",
    ),
    Entry(
        "hold",
        "job_admin",
        "Decide about jobs",
        "Hold queued jobs until they are released or cancelled.",
    ),
    Entry(
        "release",
        "job_admin",
        "Decide about jobs",
        "Release held jobs: they are due now, with their remaining attempts.",
    ),
    Entry(
        "reschedule",
        "job_admin",
        "Decide about jobs",
        "Change when queued jobs are due, to an earlier or a later time.",
    ),
    Entry(
        "reprioritise",
        "job_admin",
        "Decide about jobs",
        "Change the priority of live jobs.",
    ),
    Entry(
        "replace-payload",
        "payload_replacement",
        "Decide about jobs",
        "Replace the payload of a job that does not run; a dead letter is redriven with it.",
    ),
    Entry(
        "delete",
        "job_admin",
        "Decide about jobs",
        "Delete ended or waiting jobs permanently, with payload, result, error and history.",
    ),
    Entry(
        "purge",
        "job_admin",
        "Decide about jobs",
        "Delete all waiting jobs of a queue: due, scheduled or held ones.",
    ),
    Entry(
        "pause",
        "queue_admin",
        "Run a queue",
        "Stop claims of a queue; running jobs continue, and jobs can still be enqueued.",
    ),
    Entry("resume", "queue_admin", "Run a queue", "Allow claims of a paused queue again."),
    Entry(
        "rebucket",
        "queue_admin",
        "Run a queue",
        "Change the number of buckets of a queue, while producers and consumers run.",
    ),
    Entry(
        "region",
        "queue_admin",
        "Run a queue",
        "Assign buckets of a queue to a region, whose consumers claim from them first.",
    ),
    Entry("delete-queue", "queue_admin", "Run a queue", "Delete a queue that has no jobs and is not in use."),
    Entry(
        "maintain",
        "maintenance",
        "Maintain",
        "Do the maintenance that consumers do once an hour.",
    ),
    Entry(
        "trim",
        "maintenance",
        "Maintain",
        "Delete archived jobs that are older than their queue's retention, with their history.",
    ),
    Entry(
        "batch",
        "batches",
        "Maintain",
        "List, show, abandon and delete the batches of Spark.",
    ),
    Entry(
        "doctor",
        "doctor",
        "Maintain",
        "Check the database for problems, present or coming, and name a remedy for each finding.",
    ),
    Entry(
        "people",
        "people",
        "People",
        "Hand jobs over to people, who take, do and review them, and set the percentage that runs automatically.",
    ),
    Entry(
        "schedule",
        "schedules",
        "Schedule",
        "Manage and run schedules, which enqueue jobs by cron expressions in a time zone, or at intervals.",
    ),
]
"""In the order of the help."""
