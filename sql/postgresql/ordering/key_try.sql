-- Try to lock ordering keys without waiting, and return those that no other transaction has locked.
--
-- Keys share 64 locks of each queue, so that a large batch does not fill the server's lock table.
--
-- Parameters: queue text; keys text[]. Returns: the keys that were locked.
-- Locks: advisory locks, until the transaction ends; never waits. Guards: I5, I9.
-- Roles: producer, consumer, operator, observer.
SELECT key.name
FROM (
    SELECT lane.no, pg_try_advisory_xact_lock(hashtext('sqlqueue' || '/' || :queue), lane.no) AS won
    FROM (SELECT DISTINCT hashtext(name) & 63 AS no FROM unnest(CAST(:keys AS text[])) AS name ORDER BY no) AS lane
    OFFSET 0
) AS lock
JOIN unnest(CAST(:keys AS text[])) AS key (name) ON hashtext(key.name) & 63 = lock.no
WHERE lock.won
