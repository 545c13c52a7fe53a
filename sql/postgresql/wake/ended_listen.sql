-- Listen for the ends of jobs that have a follower to be notified, for as long as the connection lives. The payload of a
-- notification is the id of a job.
--
-- Parameters: none. Returns: nothing. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT sqlqueue.listen_to_ends()
