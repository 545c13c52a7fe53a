-- What every function that people call runs with: names mean what they mean here, whatever the caller's search_path is;
-- plans are the generic ones, which the plan tests look at, and go by indexes, as a session keeps them from when the
-- queue was all but empty; and no time goes into compiling them.
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
