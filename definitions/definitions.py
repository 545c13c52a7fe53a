"""The three workloads as one code location for `dg`, with the definitions that are scaffolded into `defs/`."""

from pathlib import Path

import dagster as dg

from definitions import daily_analytics, events, reminders


@dg.definitions
def defs() -> dg.Definitions:
    """Merge the code locations of `workspace.yaml`."""
    scaffolded = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    return dg.Definitions.merge(events.defs, reminders.defs, daily_analytics.defs, scaffolded)
