-- What this library's statements go by, until the transaction ends: for a connection whose session is not the library's
-- own, as behind a pooler. Sent in front of the transaction's first statement, in the same round trip.
--
-- Times are UTC's. Plans are made once and kept: a long backlog makes the server think a new one for each claim
-- cheaper, which costs a fifth of a claim's time. They go by indexes, as a session keeps them from when the queue was
-- all but empty. And no time goes into compiling them.
--
-- Parameters: application_name text; timeout text (of each statement, in milliseconds; null: the server's own).
--   Returns: one row. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    set_config('application_name', CAST(:application_name AS text), true),
    set_config('TimeZone', 'UTC', true),
    set_config('statement_timeout', COALESCE(CAST(:timeout AS text), current_setting('statement_timeout')), true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true)
