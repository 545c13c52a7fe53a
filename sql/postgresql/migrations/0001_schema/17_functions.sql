-- Which SQL functions are installed: a digest of their text, and the version of the library that installed them, so that an
-- older library leaves those of a newer one alone.
CREATE TABLE sqlqueue.function_set (
    name         text        PRIMARY KEY,
    digest       text        NOT NULL,
    library      text        NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now()
);

