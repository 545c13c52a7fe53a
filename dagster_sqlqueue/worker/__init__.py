"""Consumers outside of Dagster: handlers found by name, orderly stops, several processes."""
