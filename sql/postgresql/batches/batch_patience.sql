-- Set the time-outs of a transactional batch's transaction: the server waits for its next statement as long as a lease,
-- for its statements and for its end as long as they take.
--
-- Parameters: lease_milliseconds text. Returns: the names of what was set, for this transaction.
-- Roles: producer, consumer, operator, observer.
SELECT s.name, set_config(s.name, patience.value, true) AS value
FROM (VALUES
    ('idle_in_transaction_session_timeout', CAST(:lease_milliseconds AS text)),
    ('statement_timeout', '0'),
    ('transaction_timeout', '0')
) AS patience (name, value)
JOIN pg_catalog.pg_settings AS s ON s.name = patience.name
