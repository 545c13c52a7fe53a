"""The queue in Spark: session, data source, consumption, assets."""
