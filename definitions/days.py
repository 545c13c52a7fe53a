"""The days of the demo, as partitions."""

import os
from datetime import timedelta

import dagster as dg

from definitions.flights import parse_range

first_day, last_day = parse_range(os.environ.get("FLIGHTS"))
days = dg.DailyPartitionsDefinition(
    start_date=first_day.isoformat(), end_date=(last_day + timedelta(days=1)).isoformat()
)
