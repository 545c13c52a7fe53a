-- Claim due jobs under a lease, by the queue's strategy, its limits and the turns of its keys.
--
-- Commit a claim before its jobs are processed: only then do others see the lease, and with limits or keyed queues others
-- wait for this transaction to end. A claim that is rolled back leaves its lease_no to the next one: pass it to no other
-- system before the commit.
--
-- Parameters: queue text; worker text (name of the consumer, shown to people); max_jobs integer (1 to 10,000);
--   lease_seconds float8 (how long the claim holds without a heartbeat; null: the queue's); buckets integer[] (which to
--   read, in this order: one is reached when those before it do not fill the claim; null: all of them, from the one that
--   the session has read longest ago, else from a random one on); with_tags text[] and with_payload jsonb (only jobs that
--   have all these tags, and whose payload contains that one; reads due jobs until it has found enough).
-- Returns: the jobs. Every later call about a job takes its lease number. No row: nothing is due, or may run now.
-- A job whose lease expired is claimed by itself. On its last attempt it goes to the dead letter, or is held where the
-- queue says so.
-- Raises: SQ002, SQ003, SQ004 (a strategy that SQL cannot claim by: assign, token; not READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.claim(
    queue text,
    worker text,
    max_jobs integer DEFAULT 1,
    lease_seconds float8 DEFAULT NULL,
    buckets integer[] DEFAULT NULL,
    with_tags text[] DEFAULT NULL,
    with_payload jsonb DEFAULT NULL
) RETURNS TABLE (
    job_id uuid, lease_no bigint, payload jsonb, attempt integer, max_attempts integer, priority integer,
    ordering_key text, unique_key text, tags text[], error text, created_at timestamptz, lease_until timestamptz,
    timeout_seconds float8
)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    name text := claim.queue;
    queue text := claim.queue;
    revision bigint;
    buckets smallint[];
    hints text[] := '{}';
    "limit" integer := claim.max_jobs;
    fitting integer;
    per_bucket integer;
    lease_seconds float8;
    worker text := claim.worker;
    has_limit boolean;
    limited boolean;
    alone boolean;
    suspects boolean;
    single boolean;
    tags text[] := COALESCE(claim.with_tags, '{}');
    payload text := COALESCE(claim.with_payload, '{}');
    scan integer := 10000;
    after_priorities smallint[];
    after_ats timestamptz[];
    after_ids uuid[];
    ids uuid[];
    keys text[];
    starts integer;
    rate_seconds float8;
    known record;
    job record;
    chosen uuid[];
    places bigint[];
    lines text[];
    doubtful boolean[];
    found uuid;
    won text[];
    turn uuid[];
    parked uuid[];
    wanted integer;
    heads bigint;
    last_bucket smallint;
    next_bucket smallint;
    next_priority smallint;
    next_at timestamptz;
    next_id uuid;
    keyed boolean;
    heads_known jsonb;
    sweeps jsonb;
    swept boolean;
    old smallint[];
    from_head smallint[];
    asked smallint[];
    asked_at timestamptz;
    filled boolean;
    furthest bigint;
    found_buckets smallint[];
    found_priorities smallint[];
    found_at timestamptz[];
    found_ids uuid[];
    filtered boolean := claim.with_tags IS NOT NULL OR claim.with_payload IS NOT NULL;
    stepwise boolean;
    again boolean;
    handed_out boolean;
    over_ids uuid[];
    over_lease_nos bigint[];
    over_states text[];
    over_errors text[];
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN sqlqueue_v1._is_blank(claim.worker) THEN 'worker is empty; give a name for the consumer'
        WHEN claim.max_jobs IS NULL OR claim.max_jobs NOT BETWEEN 1 AND 10000
        THEN format('max_jobs is %s; a claim takes 1 to 10,000 jobs', COALESCE(CAST(claim.max_jobs AS text), 'NULL'))
        WHEN NOT (claim.lease_seconds > 0 AND claim.lease_seconds <= 3162240000)
        THEN format('lease_seconds is %s; it must be positive, at most a hundred years', claim.lease_seconds)
        WHEN cardinality(claim.buckets) = 0 OR array_ndims(claim.buckets) > 1 OR EXISTS (
            SELECT FROM unnest(claim.buckets) AS b (no) WHERE (b.no BETWEEN 0 AND 1023) IS NOT TRUE
        )
        THEN format('buckets is %s; name at least one, each 0 to 1023, or give NULL for all', claim.buckets)
        WHEN EXISTS (SELECT FROM unnest(claim.with_tags) AS t (tag) WHERE t.tag IS NULL)
        THEN 'with_tags holds NULL; give tags, or NULL for any'
        WHEN jsonb_typeof(claim.with_payload) <> 'object'
        THEN 'with_payload is no JSON object; write it like {"country": "NZ"}'
    END);
    -- Jobs that a claim moves to the dead letter are not returned: then it reads once more.
    FOR round IN 1 .. 100 LOOP
        clock := clock_timestamp();
        {{queues}}
        INTO known;
        IF known.name IS NULL OR claim.queue IS NULL THEN
            PERFORM sqlqueue_v1._unknown_queue(claim.queue);
        END IF;
        keyed := known.ordered OR known.max_running_per_key IS NOT NULL;
        has_limit := known.max_running IS NOT NULL OR known.rate_limit IS NOT NULL;
        limited := known.max_running IS NOT NULL;
        IF known.strategy IN ('assign', 'token') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'SQ004',
                MESSAGE = format(
                    'queue %L has the strategy %L, which SQL functions cannot claim by', claim.queue, known.strategy
                ),
                HINT = 'Give it another one, such as round_robin, with: sqlqueue create, or consume it from Python.';
        END IF;
        IF keyed OR has_limit THEN
            PERFORM sqlqueue_v1._need_read_committed(claim.queue);
        END IF;
        EXIT WHEN known.paused_at IS NOT NULL;
        revision := known.revision;
        lease_seconds := COALESCE(claim.lease_seconds, known.lease_seconds);
        buckets := claim.buckets;
        IF buckets IS NULL THEN
            wanted := CASE WHEN known.strategy = 'fifo' THEN 0 ELSE floor(random() * known.claim_buckets) END;
            buckets := ARRAY(
                SELECT (no + wanted) % known.claim_buckets FROM generate_series(0, known.claim_buckets - 1) AS no
                ORDER BY no
            );
        END IF;
        stepwise := keyed OR filtered OR known.strategy <> 'round_robin';
        again := false;
        handed_out := false;
        over_ids := '{}';
        over_lease_nos := '{}';
        over_states := '{}';
        over_errors := '{}';
        "limit" := claim.max_jobs;
        ids := '{}';
        chosen := '{}';
        BEGIN
            IF has_limit THEN
                PERFORM FROM ({{limit_lock}}) AS waited;
            END IF;
            -- Each bucket has its own time at which a claim read it from the very beginning: a claim reads as many buckets
            -- as it takes to fill it. One that may begin anywhere begins where that is longest ago.
            heads_known := NULL;
            IF known.strategy <> 'fifo' AND cardinality(buckets) <= 64 THEN
                heads_known := sqlqueue_v1._heads(claim.queue, NULL);
            END IF;
            sweeps := heads_known -> 'swept';
            old := ARRAY(
                SELECT b.no
                FROM unnest(buckets) WITH ORDINALITY AS b (no, place)
                CROSS JOIN LATERAL (
                    SELECT CAST(sweeps ->> CAST(b.no AS text) AS float8) AS swept
                ) AS head
                WHERE COALESCE(head.swept < EXTRACT(EPOCH FROM clock_timestamp()) - 5, true)
                ORDER BY head.swept NULLS FIRST, b.place
            );
            swept := cardinality(old) = cardinality(buckets);
            IF claim.buckets IS NULL AND cardinality(old) > 0 THEN
                wanted := array_position(buckets, old[1]);
                buckets := buckets[wanted:] || buckets[:wanted - 1];
            END IF;
            IF NOT stepwise THEN
                LOOP
                    suspects := cardinality(chosen) = 0;
                    single := suspects;
                    hints := CASE WHEN swept THEN '{}' ELSE ARRAY(
                        SELECT CASE WHEN b.no <> ALL (old) THEN heads_known -> 'at' ->> CAST(b.no AS text) END
                        FROM unnest(buckets) WITH ORDINALITY AS b (no, place)
                        ORDER BY b.place
                    ) END;
                    "limit" := claim.max_jobs - cardinality(chosen);
                    found_buckets := '{}';
                    found_priorities := '{}';
                    found_at := '{}';
                    found_ids := '{}';
                    clock := clock_timestamp();
                    IF has_limit THEN
                        FOR job IN {{claim_limited}} LOOP
                            found_ids := found_ids || CAST(job.id AS uuid);
                            found_buckets := found_buckets || CAST(job.bucket AS smallint);
                            found_priorities := found_priorities || CAST(job.priority AS smallint);
                            found_at := found_at || CAST(job.due_at AS timestamptz);
                        END LOOP;
                    ELSE
                        FOR job IN {{claim_round_robin}} LOOP
                            found_ids := found_ids || CAST(job.id AS uuid);
                            found_buckets := found_buckets || CAST(job.bucket AS smallint);
                            found_priorities := found_priorities || CAST(job.priority AS smallint);
                            found_at := found_at || CAST(job.due_at AS timestamptz);
                        END LOOP;
                    END IF;
                    chosen := chosen || found_ids;
                    IF heads_known IS NOT NULL THEN
                        IF swept THEN
                            old := buckets;
                        END IF;
                        -- Under a limit, and for a job claimed by itself, it is unknown how many more would have been
                        -- claimed.
                        furthest := cardinality(buckets);
                        IF has_limit OR cardinality(found_ids) IN (1, "limit") THEN
                            furthest := (SELECT max(array_position(buckets, f.no)) FROM unnest(found_buckets) AS f (no));
                        END IF;
                        heads_known := sqlqueue_v1._heads(
                            claim.queue, clock,
                            ARRAY(SELECT o.no FROM unnest(old) AS o (no) WHERE o.no = ANY (buckets[:furthest])),
                            found_buckets, found_priorities, found_at, found_ids
                        );
                    END IF;
                    -- Fewer than requested: then there may be some before the place where this began. A job claimed by
                    -- itself stays so.
                    EXIT WHEN swept OR cardinality(chosen) IN (1, claim.max_jobs);
                    swept := true;
                END LOOP;
                ids := chosen;
            ELSE
                IF has_limit THEN
                    clock := clock_timestamp();
                    wanted := NULL;
                    {{limit_allowance}}
                    INTO wanted;
                    EXIT WHEN COALESCE(wanted, 0) <= 0;
                ELSE
                    wanted := claim.max_jobs;
                END IF;
                places := '{}';
                lines := '{}';
                doubtful := '{}';
                hints := '{}';
                clock := clock_timestamp();
                asked := buckets;
                asked_at := clock;
                found_buckets := '{}';
                filled := false;
                IF filtered THEN
                    fitting := wanted;
                    -- Each of them once: a page begins at the bucket in which the one before it ended.
                    buckets := ARRAY(
                        SELECT b.no
                        FROM unnest(buckets) WITH ORDINALITY AS b (no, place)
                        GROUP BY b.no
                        ORDER BY min(b.place)
                    );
                    after_priorities := '{}';
                    after_ats := '{}';
                    after_ids := '{}';
                    LOOP
                        "limit" := fitting;
                        {{scan_fitting}}
                        INTO ids, last_bucket, next_bucket, next_priority, next_at, next_id;
                        "limit" := wanted;
                        FOR job IN {{pick_ids}} LOOP
                            chosen := chosen || job.id;
                            places := places || CASE WHEN job.ordering_key IS NOT NULL THEN job.order_no END;
                            lines := lines || job.ordering_key;
                            doubtful := doubtful || job.suspect;
                            found_buckets := found_buckets || job.bucket;
                        END LOOP;
                        EXIT WHEN cardinality(chosen) > 0;
                        IF cardinality(ids) >= fitting THEN
                            -- Others have locked all that was found so far, and there may be more behind it.
                            fitting := fitting * 4;
                        ELSE
                            EXIT WHEN next_bucket IS NULL;
                            fitting := wanted;
                            buckets := buckets[array_position(buckets, next_bucket):];
                            after_priorities := ARRAY[next_priority];
                            after_ats := ARRAY[next_at];
                            after_ids := ARRAY[next_id];
                        END IF;
                    END LOOP;
                    filled := cardinality(ids) >= fitting OR next_bucket IS NOT NULL;
                ELSE
                    "limit" := CASE WHEN keyed THEN GREATEST(wanted, 500) ELSE wanted END;
                    -- A session that remembers nothing would take the oldest, as all others that do not.
                    from_head := CASE WHEN sweeps <> '{}' THEN old ELSE '{}' END;
                    IF known.strategy = 'fanout' THEN
                        FOR job IN {{pick_fanout}} LOOP
                            chosen := chosen || job.id;
                            places := places || CASE WHEN job.ordering_key IS NOT NULL THEN job.order_no END;
                            lines := lines || job.ordering_key;
                            doubtful := doubtful || job.suspect;
                            found_buckets := found_buckets || job.bucket;
                        END LOOP;
                    ELSIF known.strategy = 'fifo' THEN
                        per_bucket := "limit";
                        LOOP
                            heads := 0;
                            FOR job IN {{pick_fifo}} LOOP
                                heads := job.heads;
                                IF job.id IS NOT NULL THEN
                                    chosen := chosen || job.id;
                                    places := places || CASE WHEN job.ordering_key IS NOT NULL THEN job.order_no END;
                                    lines := lines || job.ordering_key;
                                    doubtful := doubtful || job.suspect;
                                END IF;
                            END LOOP;
                            EXIT WHEN cardinality(chosen) > 0 OR heads < per_bucket OR per_bucket > 100000;
                            per_bucket := per_bucket * 4;
                        END LOOP;
                    ELSE
                        FOR job IN {{pick_round_robin}} LOOP
                            chosen := chosen || job.id;
                            places := places || CASE WHEN job.ordering_key IS NOT NULL THEN job.order_no END;
                            lines := lines || job.ordering_key;
                            doubtful := doubtful || job.suspect;
                            found_buckets := found_buckets || job.bucket;
                        END LOOP;
                    END IF;
                    filled := cardinality(chosen) >= "limit";
                END IF;
                found_ids := chosen;
                parked := '{}';
                IF keyed AND EXISTS (SELECT FROM unnest(places) AS p (no) WHERE p.no IS NOT NULL) THEN
                    keys := ARRAY(
                        SELECT DISTINCT l.name
                        FROM unnest(lines, places) AS l (name, no)
                        WHERE l.no IS NOT NULL
                        ORDER BY l.name
                    );
                    won := '{}';
                    FOR job IN {{key_try}} LOOP
                        won := won || job.name;
                    END LOOP;
                    ids := ARRAY(
                        SELECT c.id
                        FROM unnest(chosen, places, lines) AS c (id, no, line)
                        JOIN unnest(won) AS w (name) ON w.name = c.line
                        WHERE c.no IS NOT NULL
                    );
                    clock := clock_timestamp();
                    turn := '{}';
                    IF cardinality(ids) > 0 THEN
                        FOR found IN {{key_turns}} LOOP
                            turn := turn || found;
                        END LOOP;
                        ids := ARRAY(SELECT d.id FROM unnest(ids) AS d (id) EXCEPT SELECT t.id FROM unnest(turn) AS t (id));
                        FOR found IN {{park_waiting}} LOOP
                            parked := parked || found;
                        END LOOP;
                        IF cardinality(parked) > 0 AND known.ordered THEN
                            -- One whose lease expired need not be the first of its key: the first may have waited for it.
                            keys := ARRAY(
                                SELECT DISTINCT c.line
                                FROM unnest(chosen, lines) AS c (id, line)
                                JOIN unnest(parked) AS p (id) ON p.id = c.id
                                ORDER BY c.line
                            );
                            FOR found IN {{key_promote}} LOOP
                            END LOOP;
                        END IF;
                    END IF;
                    SELECT COALESCE(array_agg(c.id ORDER BY c.rank), '{}'), array_agg(c.suspect ORDER BY c.rank)
                    INTO chosen, doubtful
                    FROM unnest(chosen, places, doubtful) WITH ORDINALITY AS c (id, no, suspect, rank)
                    LEFT JOIN unnest(turn) AS t (id) ON t.id = c.id
                    WHERE c.no IS NULL OR t.id IS NOT NULL;
                END IF;
                again := cardinality(parked) > 0;
                -- One whose lease expired is claimed by itself, and those before it without it.
                wanted := LEAST(
                    wanted, CASE array_position(doubtful, true) WHEN 1 THEN 1 ELSE array_position(doubtful, true) - 1 END
                );
                ids := chosen[1 : wanted];
                alone := cardinality(ids) = 1;
                IF heads_known IS NOT NULL AND cardinality(old) > 0 AND NOT (again AND cardinality(ids) = 0) THEN
                    -- Of what is left to the next claims it is not known what is older in its buckets.
                    furthest := cardinality(asked);
                    IF filled OR cardinality(ids) < cardinality(chosen) THEN
                        furthest := (
                            SELECT max(array_position(asked, f.no))
                            FROM unnest(found_ids, found_buckets) AS f (id, no)
                            LEFT JOIN unnest(ids) AS i (id) ON i.id = f.id
                            WHERE i.id IS NOT NULL OR cardinality(ids) = cardinality(chosen)
                        );
                    END IF;
                    heads_known := sqlqueue_v1._heads(
                        claim.queue, asked_at,
                        ARRAY(SELECT o.no FROM unnest(old) AS o (no) WHERE o.no = ANY (asked[:furthest]))
                    );
                END IF;
                IF cardinality(ids) > 0 THEN
                    clock := clock_timestamp();
                    starts := 0;
                    FOR job IN {{grant}} LOOP
                        starts := starts + 1;
                    END LOOP;
                    rate_seconds := known.rate_seconds;
                    IF rate_seconds IS NOT NULL THEN
                        clock := clock_timestamp();
                        {{rate_note}};
                    END IF;
                END IF;
            END IF;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
            -- One row that no claim can take must not keep the others from being claimed.
            IF sqlqueue.hold_unclaimable(claim.queue) = 0 THEN
                RAISE;
            END IF;
            CONTINUE;
        END;
        EXIT WHEN cardinality(ids) = 0 AND NOT again;
        FOR job IN {{granted}} LOOP
            IF job.cancel_requested OR job.attempt > job.max_attempts THEN
                over_ids := over_ids || CAST(job.id AS uuid);
                over_lease_nos := over_lease_nos || CAST(job.lease_no AS bigint);
                over_states := over_states || CASE
                    WHEN job.cancel_requested THEN 'cancelled'
                    WHEN job.order_no IS NOT NULL AND known.on_poison = 'stop' THEN 'held'
                    ELSE 'failed'
                END;
                over_errors := over_errors || CASE
                    WHEN job.cancel_requested THEN 'cancelled while it ran'
                    ELSE format(
                        'the lease ran out on the last of %s attempts: its consumer died or hung%s', job.max_attempts,
                        '; the attempt before it: ' || job.error
                    )
                END;
                CONTINUE;
            END IF;
            handed_out := true;
            claim.job_id := job.id;
            claim.lease_no := job.lease_no;
            claim.payload := job.payload;
            claim.attempt := job.attempt;
            claim.max_attempts := job.max_attempts;
            claim.priority := job.priority;
            claim.ordering_key := job.ordering_key;
            claim.unique_key := job.unique_key;
            claim.tags := job.tags;
            claim.error := job.error;
            claim.created_at := job.created_at;
            claim.lease_until := job.lease_until;
            claim.timeout_seconds := job.timeout_seconds;
            RETURN NEXT;
        END LOOP;
        IF cardinality(over_ids) > 0 THEN
            PERFORM sqlqueue_v1._end(
                CASE o.state = 'held' WHEN true THEN 'hold' ELSE 'finish' END, array_agg(o.id ORDER BY o.place),
                array_agg(o.lease_no ORDER BY o.place), 'report', states => array_agg(o.state ORDER BY o.place),
                errors => array_agg(o.error ORDER BY o.place)
            )
            FROM unnest(over_ids, over_lease_nos, over_states, over_errors) WITH ORDINALITY
                AS o (id, lease_no, state, error, place)
            GROUP BY o.state = 'held';
        END IF;
        EXIT WHEN handed_out;
    END LOOP;
END
$function$;
