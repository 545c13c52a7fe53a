-- Compare the operating system's sort order of text with that in which the indexes were built. PostgreSQL 15 or newer.
--
-- Parameters: none. Returns: one row: database (its quoted name), recorded and actual (versions of its collation; null
--   where the collation has none, as C). Locks: none. Plan: one row of a catalogue.
-- Roles: producer, consumer, operator, observer.
SELECT
    quote_ident(d.datname) AS database,
    d.datcollversion AS recorded,
    pg_database_collation_actual_version(d.oid) AS actual
FROM pg_database AS d
WHERE d.datname = current_database()
