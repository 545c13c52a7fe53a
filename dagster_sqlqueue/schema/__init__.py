"""The schema: made and brought up to date, its SQL functions, its roles, the partitions of its archive."""
