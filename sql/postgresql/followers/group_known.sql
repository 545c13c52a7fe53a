-- Which followers are there already: the members of a group that is closed by now and is sent again.
--
-- Parameters: ids uuid[]. Returns: the ids. Locks: none. Plan: the primary key.
-- Roles: producer, operator, observer.
SELECT f.id FROM sqlqueue.follower AS f WHERE f.id = ANY (CAST(:ids AS uuid[]))
