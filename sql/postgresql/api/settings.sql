-- Settings of every public function: names resolve as written, whatever the caller's search_path is; plans are the generic
-- ones, which the plan tests check, and use indexes, like those that a session keeps from when the queue was almost empty;
-- no time is spent on compiling them.
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
