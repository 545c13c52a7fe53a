-- Check whether a message matches a filter: the rule of publish.sql, and of claims with a filter.
--
-- Parameters: filter_payload jsonb, filter_tags text[] (null: any); payload jsonb; tags text[].
-- Returns: one row, one boolean. Reads no table. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    (CAST(:filter_payload AS jsonb) IS NULL OR CAST(:payload AS jsonb) @> CAST(:filter_payload AS jsonb))
    AND (CAST(:filter_tags AS text[]) IS NULL OR CAST(:tags AS text[]) @> CAST(:filter_tags AS text[])) AS matches
