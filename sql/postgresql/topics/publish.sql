-- Publish messages to a topic: each becomes one job for each receiver that it matches, on the queue of the subscription.
--
-- A subscription with mode copy is a receiver by itself. Those with mode move that share a group are one receiver together:
-- of those that match, the message goes to the one whose digest with the message's id is the smallest. So all of a group
-- get equal shares, a message that is sent again goes to the same one, and when a subscription joins or leaves only its own
-- share moves.
--
-- A job's id is laid out as a version 7 UUID: the 48 bits of time of its message's id, and 74 bits of the SHA-256 of that
-- id, the topic and the receiver. A message that is sent again makes the same ids, and is inserted once.
--
-- Parameters: topic text; and one element for each message: ids uuid[]; hashes integer[] (not negative; null: without
--   ordering key, from the job's id); priorities smallint[]; run_ats timestamptz[] (null: due now); ordering_keys text[];
--   tags text[] (each a text[], null: none); payloads text[] (JSON).
-- Returns, for each message and receiver, in the order of the messages: the message's number, from 1; the subscription; the
--   queue; the job's id; whether it was inserted (a live job may have the id already). No row of a message: it matches no
--   subscription. The trigger job_wakes wakes consumers of the queues.
-- Locks: the inserted rows only, in the order of their ids: two transactions that send the same messages in different
--   orders do not deadlock. Guards: I1 (it is one transaction with the caller's other writes), I5.
-- Plan: the topic's subscriptions by the primary key, and each one's queue, for each message by itself: so the numbers in
--   the lines of ordering keys keep the order of the messages. Nothing is joined with the inserted rows, because no plan
--   can know their number.
-- Roles: producer, operator.
WITH message AS MATERIALIZED (
    SELECT
        given.no, given.id, given.hash, given.priority, COALESCE(given.run_at, now()) AS run_at, given.ordering_key,
        COALESCE(CAST(given.tags AS text[]), '{}') AS tags, CAST(given.payload AS jsonb) AS payload
    FROM unnest(
        CAST(:ids AS uuid[]), CAST(:hashes AS integer[]), CAST(:priorities AS smallint[]),
        CAST(:run_ats AS timestamptz[]), CAST(:ordering_keys AS text[]), CAST(:tags AS text[]),
        CAST(:payloads AS text[])
    ) WITH ORDINALITY AS given (id, hash, priority, run_at, ordering_key, tags, payload, no)
), chosen AS MATERIALIZED (
    SELECT
        m.no, m.hash AS key_hash, COALESCE(fits.priority, m.priority) AS priority, m.ordering_key, m.tags, m.payload,
        LEAST(
            m.run_at + make_interval(secs => fits.delay_seconds), CAST('9999-12-31 23:59:59.999999+00' AS timestamptz)
        ) AS run_at,
        fits.name, fits.queue, q.bucket_count, q.max_attempts, q.timeout_seconds, fits.digest,
        CASE WHEN q.keyed AND m.ordering_key IS NOT NULL THEN nextval('sqlqueue.job_order') END AS order_no,
        CAST(
            left(encode(uuid_send(m.id), 'hex'), 12)
            || '7' || left(encode(fits.digest, 'hex'), 3)
            || substr('89ab', 1 + (get_byte(fits.digest, 31) & 3), 1) || substr(encode(fits.digest, 'hex'), 4, 15)
            AS uuid
        ) AS job_id
    FROM message AS m
    CROSS JOIN LATERAL (
        SELECT one.*, sha256(uuid_send(m.id) || convert_to(one.topic || ':' || one.receiver, 'UTF8')) AS digest
        FROM (
            SELECT DISTINCT ON (s.receiver) s.topic, s.receiver, s.name, s.queue, s.priority, s.delay_seconds
            FROM sqlqueue.subscription AS s
            WHERE s.topic = :topic
              AND (s.tags IS NULL OR m.tags @> s.tags)
              AND (s.payload IS NULL OR m.payload @> s.payload)
            ORDER BY
                s.receiver,
                CASE s.mode WHEN 'move' THEN sha256(uuid_send(m.id) || convert_to(s.name, 'UTF8')) END,
                s.name
        ) AS one
    ) AS fits
    CROSS JOIN LATERAL (
        SELECT w.bucket_count, w.max_attempts, w.timeout_seconds, w.keyed
        FROM sqlqueue.queue AS w
        WHERE w.name = fits.queue
        OFFSET 0
    ) AS q
), put AS (
    INSERT INTO sqlqueue.job (
        id, queue, bucket, priority, available_at, run_at, max_attempts, ordering_key, order_no, timeout_seconds, tags,
        payload
    )
    SELECT
        c.job_id,
        c.queue,
        COALESCE(
            c.key_hash,
            ((get_byte(c.digest, 5) & 127) << 24) + (get_byte(c.digest, 6) << 16)
            + (get_byte(c.digest, 7) << 8) + get_byte(c.digest, 8)
        ) % c.bucket_count,
        c.priority,
        c.run_at,
        c.run_at,
        c.max_attempts,
        c.ordering_key,
        c.order_no,
        c.timeout_seconds,
        c.tags,
        c.payload
    FROM chosen AS c
    ORDER BY c.job_id
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT
    CAST(c.no AS integer) AS no, c.name, c.queue, c.job_id, c.job_id IN (SELECT put.id FROM put) AS inserted
FROM chosen AS c
