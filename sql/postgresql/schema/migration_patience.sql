-- Limit how long a transaction of a migration waits for each lock, and let it idle in between.
--
-- Parameters: milliseconds text. Returns: the session's process id. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    pg_backend_pid() AS pid, set_config('lock_timeout', :milliseconds, true),
    set_config('idle_in_transaction_session_timeout', '0', true)
