-- Have this session no longer woken by the jobs of a queue: it is at work.
--
-- Parameters: queue text. Returns: whether it was armed; false: perhaps because a job has taken its row, and somebody
--   else is to be told of that (waiter_pass). Locks: the session's own rows; one that a producer has locked is left to him.
-- Plan: as waiter_arm.
-- Roles: consumer.
SELECT sqlqueue.disarm_waiter(:queue)
