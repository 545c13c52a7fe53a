-- Reject unusable arguments of a job to be enqueued. The rules are those of the library's own enqueue.
--
-- Parameters: place text (before the message: 'row 3: ', or nothing); the others as for enqueue. Raises: SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._check_job(
    place text, payload jsonb, run_at timestamptz, priority integer, ordering_key text, unique_key text, tags text[],
    max_attempts integer, timeout_seconds float8, backoff float8[], region text,
    unique_until text DEFAULT 'end'
) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $function$
DECLARE
    written text := CAST(payload AS text);
    problem text := CASE
        WHEN payload IS NULL THEN 'the payload is NULL; give a JSON object'
        WHEN jsonb_typeof(payload) NOT IN ('object', 'array')
        THEN format('the payload is a JSON %s; give an object, or an array', jsonb_typeof(payload))
        WHEN octet_length(written) > 1000000
        THEN format(
            'the payload has %s bytes, the limit is 1,000,000; store the data elsewhere and enqueue a reference to it',
            octet_length(written)
        )
        WHEN NOT (run_at IS NULL OR (run_at >= '0001-01-01 00:00:00+00' AND run_at < '10000-01-01 00:00:00+00'))
        THEN format('run_at is %s; in UTC it must lie within the years 1 to 9999', run_at)
        WHEN priority IS NULL OR priority NOT BETWEEN 0 AND 9
        THEN format('priority is %s; it must be 0 to 9, higher runs first', COALESCE(CAST(priority AS text), 'NULL'))
        WHEN max_attempts NOT BETWEEN 1 AND 1000000
        THEN format('max_attempts is %s; it must be 1 to 1,000,000', max_attempts)
        WHEN NOT (timeout_seconds > 0 AND timeout_seconds <= 3162240000)
        THEN format('timeout_seconds is %s; it must be positive, at most a hundred years', timeout_seconds)
        WHEN array_ndims(tags) > 1 THEN 'tags has more than one dimension; give a plain array'
        WHEN cardinality(tags) > 100 THEN format('tags has %s words; a job may have 100', cardinality(tags))
        WHEN char_length(ordering_key) NOT BETWEEN 1 AND 1000
        THEN 'ordering_key must be a text of 1 to 1,000 characters'
        WHEN char_length(unique_key) NOT BETWEEN 1 AND 1000 THEN 'unique_key must be a text of 1 to 1,000 characters'
        WHEN char_length(region) NOT BETWEEN 1 AND 1000 THEN 'region must be a text of 1 to 1,000 characters'
        WHEN octet_length(ordering_key) > 2500
        THEN format('ordering_key has %s bytes, the limit is 2,500; use a digest of it', octet_length(ordering_key))
        WHEN octet_length(unique_key) > 2500
        THEN format('unique_key has %s bytes, the limit is 2,500; use a digest of it', octet_length(unique_key))
        WHEN octet_length(region) > 2500
        THEN format('region has %s bytes, the limit is 2,500; use a digest of it', octet_length(region))
        WHEN unique_until IS NULL OR unique_until NOT IN ('end', 'claim')
        THEN format('unique_until is %s; it must be ''end'' or ''claim''', COALESCE(quote_literal(unique_until), 'NULL'))
        WHEN unique_until = 'claim' AND unique_key IS NULL
        THEN 'unique_until is ''claim'', and there is no unique_key; give one'
    END;
BEGIN
    IF problem IS NULL AND cardinality(tags) > 0 THEN
        SELECT 'tags must be texts of 1 to 1,000 characters, and holds ' || COALESCE(quote_literal(left(t.tag, 100)), 'NULL')
        INTO problem
        FROM unnest(tags) AS t (tag)
        WHERE t.tag IS NULL OR char_length(t.tag) NOT BETWEEN 1 AND 1000
        LIMIT 1;
    END IF;
    IF problem IS NULL AND backoff IS NOT NULL AND (
        cardinality(backoff) = 4 AND array_ndims(backoff) = 1
        AND backoff[1] >= 0 AND backoff[1] < 'infinity'
        AND backoff[2] >= 1 AND backoff[2] < 'infinity'
        AND backoff[3] BETWEEN 0 AND 3162240000
        AND backoff[4] BETWEEN 0 AND 1
    ) IS NOT TRUE THEN
        problem := format(
            'backoff is %s; it must be {seconds, factor, max_seconds, jitter}: seconds and max_seconds not negative,'
            ' max_seconds at most a hundred years, factor at least 1, jitter 0 to 1', backoff
        );
    END IF;
    -- What the database's JSON can hold, but Python and other readers do not accept by default.
    IF problem IS NULL AND length(written) > 310 AND written ~ ('[0-9]{200}' || repeat('[0-9]', 55)) THEN
        SELECT CASE
            WHEN found.largest >= power(CAST(10 AS numeric), 4300)
            THEN 'the payload holds a number of more than 4,300 digits; send it as a text'
            -- Written with a point, it is read as a double, and one beyond its range as infinite.
            WHEN found.largest_fraction >= 1.7976931348623158e308
            THEN 'the payload holds a number beyond the range of a double; send it as a text'
        END
        INTO problem
        FROM (
            SELECT
                max(abs(CAST(part.value AS numeric))) AS largest,
                max(abs(CAST(part.value AS numeric)))
                    FILTER (WHERE scale(CAST(part.value AS numeric)) > 0) AS largest_fraction
            FROM jsonb_path_query(payload, 'strict $.**') AS part (value)
            WHERE jsonb_typeof(part.value) = 'number'
        ) AS found;
    END IF;
    IF problem IS NOT NULL THEN
        PERFORM sqlqueue_v1._refuse(place || problem);
    END IF;
END
$function$;
