-- Disarm this session, which is not idle any more: jobs of the queue no longer wake it.
--
-- Parameters: queue text. Returns: whether it was armed; false: perhaps because a job has deleted its row, and another
--   consumer has to be notified of that job (waiter_pass). Locks: the session's own rows; one that a producer has locked is
--   left to it.
-- Plan: as waiter_arm.
-- Roles: consumer.
SELECT sqlqueue.disarm_waiter(:queue)
