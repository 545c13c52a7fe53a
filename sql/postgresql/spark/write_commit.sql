-- Enqueue the jobs that the accepted attempts of a write have staged, all of them or none. See 16_spark.sql.
--
-- Parameters: write_id uuid; queue text; name text (null: none); batch bigint; accepted uuid[]; expected bigint (their
--   rows).
-- Returns: one row: repeated, jobs, duplicates, committed_at. Notifies if a job is due. Fails with P0002 if staged rows
--   no longer exist.
-- Locks: the row of the name; the inserted rows. Guards: I1, I6 (one transaction, under one name once).
-- Roles: producer, operator.
SELECT w.repeated, w.jobs, w.duplicates, w.committed_at
FROM sqlqueue.enqueue_staged(
    CAST(:write_id AS uuid), CAST(:queue AS text), CAST(:name AS text), CAST(:batch AS bigint),
    CAST(:accepted AS uuid[]), CAST(:expected AS bigint)
) AS w
