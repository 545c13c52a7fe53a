"""The demo: real flights of 2013 through the queue, and Dagster's code locations around it.

`definitions.flights` is the input, `definitions.expected` the same results computed without the queue.
"""
