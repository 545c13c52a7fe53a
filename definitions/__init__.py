"""The demo: real flights of 2013 through three queues, and Dagster's code locations around them.

`definitions.events`, `definitions.reminders` and `definitions.daily_analytics` are the workloads, `definitions.definitions`
has all three. `definitions.flights` is the input, `definitions.expected` the same results computed without the queue.
"""
