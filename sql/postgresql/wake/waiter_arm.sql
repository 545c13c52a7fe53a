-- Arm this session, which listens, to be woken once, by the next job enqueued on a queue.
--
-- Read the queue after it (waiter_poll): a job that was committed at the same moment wakes no session.
--
-- Parameters: queue text; buckets smallint[] (null: any); choosy boolean (whether the consumer takes only some jobs of
--   them: then it is notified of each one in addition to another consumer); seconds float8 (from now).
-- Returns: how many sessions are armed for the queue now that take each of its jobs (16 at most), this one included: they
--   share the polls.
-- Locks: the session's own rows. Guards: I8 only in how soon: a consumer that is not notified finds the job when it polls.
-- Plan: the queue's rows of the last seconds, by their index.
-- Roles: consumer.
SELECT sqlqueue.arm_waiter(
    :queue, CAST(:buckets AS smallint[]), CAST(:choosy AS boolean), CAST(:seconds AS double precision)
)
