-- Stage the jobs of one attempt of a Spark task, by COPY in binary. No consumer sees them before write_commit enqueues
-- those of the attempts that Spark accepted.
--
-- Parameters: none. Returns: nothing. Locks: the inserted rows only.
-- Roles: producer, operator.
COPY sqlqueue.staged_job (
    attempt, row_no, id, named, hash, priority, run_at, max_attempts, unique_key, unique_until_claim, ordering_key,
    timeout_seconds, tags, region, payload
) FROM STDIN (FORMAT BINARY)
