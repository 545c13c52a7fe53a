-- Return which followers exist already: the members of a group that is closed by now and is sent again.
--
-- Parameters: ids uuid[]. Returns: the ids. Locks: none. Plan: the primary key.
-- Roles: producer, operator, observer.
SELECT known.id FROM sqlqueue.known_followers(CAST(:ids AS uuid[])) AS known (id)
