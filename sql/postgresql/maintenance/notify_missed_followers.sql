-- Notify the followers that were left out when their job ended: it was ended in a transaction that did not see them (with
-- an isolation stricter than READ COMMITTED), or its row was deleted by hand. In the latter case there is nothing to
-- notify: they are deleted, and groups no longer wait for that job.
--
-- Parameters: after uuid (where the call before ended; the nil UUID: from the beginning); limit integer.
-- Returns: one row: how many followed jobs were read, how many followers were notified or deleted, the last job read (null:
--   none). Locks: as the function notify_followers.
-- Plan: the index of followers by their job, skipping members of groups that were notified, and the primary key of the
--   jobs, for so many jobs.
-- Roles: operator.
WITH scanned AS MATERIALIZED (
    SELECT DISTINCT f.job_id
    FROM sqlqueue.follower AS f
    WHERE f.state IS NULL AND f.job_id > CAST(:after AS uuid)
    ORDER BY f.job_id
    LIMIT :limit
), lost AS MATERIALIZED (
    SELECT
        scanned.job_id,
        (SELECT max(a.finished_at) FROM sqlqueue.job_archive AS a WHERE a.id = scanned.job_id) AS ended_at
    FROM scanned
    WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = scanned.job_id OFFSET 0)
), notified AS MATERIALIZED (
    SELECT sqlqueue.notify_late_followers(lost.job_id, lost.ended_at) AS followers
    FROM lost
    WHERE lost.ended_at IS NOT NULL
), gone AS (
    DELETE FROM sqlqueue.follower AS f
    USING lost
    WHERE f.job_id = lost.job_id AND lost.ended_at IS NULL AND f.state IS NULL
    RETURNING f.group_id
), tallied AS (
    INSERT INTO sqlqueue.group_tally AS t (group_id, members)
    SELECT gone.group_id, -count(*) FROM gone WHERE gone.group_id IS NOT NULL GROUP BY gone.group_id
    ON CONFLICT (xact, group_id) DO UPDATE SET members = t.members + EXCLUDED.members
)
SELECT
    (SELECT count(*) FROM scanned),
    CAST(COALESCE((SELECT sum(notified.followers) FROM notified), 0) + (SELECT count(*) FROM gone) AS bigint),
    (SELECT s.job_id FROM scanned AS s ORDER BY s.job_id DESC LIMIT 1)
