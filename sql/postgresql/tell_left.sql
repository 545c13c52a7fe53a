-- Tell those who were left out when their job ended: it was ended in a transaction that did not see them (with an isolation
-- stricter than READ COMMITTED), or its row was deleted by hand. In the latter case there is nothing to tell: they are
-- forgotten, and groups no longer wait for that job.
--
-- Returns: one row: how many followers; of at most 1,000 jobs. Locks: as the function tell_followers.
-- Plan: reads all followers, and the primary key of the jobs once for each job that is followed.
WITH lost AS MATERIALIZED (
    SELECT
        followed.job_id,
        (SELECT max(a.finished_at) FROM sqlqueue.job_archive AS a WHERE a.id = followed.job_id) AS ended_at
    FROM (SELECT DISTINCT f.job_id FROM sqlqueue.follower AS f WHERE f.state IS NULL) AS followed
    WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = followed.job_id)
    LIMIT 1000
), told AS MATERIALIZED (
    SELECT sqlqueue.tell_followers(lost.job_id, lost.ended_at, true) AS followers
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
SELECT CAST(COALESCE((SELECT sum(told.followers) FROM told), 0) + (SELECT count(*) FROM gone) AS bigint) AS followers
