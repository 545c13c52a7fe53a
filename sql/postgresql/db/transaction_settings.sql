-- Set what this library's statements rely on, until the transaction ends: for a connection whose session is not the
-- library's own, as behind a pooler. Sent before the transaction's first statement, in the same round trip.
--
-- Times are in UTC. Plans are made once and kept: with a long backlog the server estimates a new plan for each claim as
-- cheaper, which costs a fifth of a claim's time. They use indexes, like the plans that a session keeps from when the queue
-- was almost empty. No time is spent on compiling them. Timeouts of the role do not apply: they would end a statement that
-- only waits, or the transaction of a handler that takes its time. NULL in the text of an array is no word.
--
-- Parameters: application_name text; timeout text (of each statement, in milliseconds; 0: none).
--   Returns: one row. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    set_config('application_name', CAST(:application_name AS text), true),
    set_config('TimeZone', 'UTC', true),
    set_config('statement_timeout', CAST(:timeout AS text), true),
    set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true),
    CASE
        WHEN current_setting('transaction_timeout', true) IS NOT NULL
        THEN set_config('transaction_timeout', '0', true)
    END,
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true),
    set_config('array_nulls', 'on', true)
