-- The schema itself and the record of what was applied to it: what every migration rests on.
-- Roles: none but the owner.
CREATE SCHEMA IF NOT EXISTS sqlqueue;

CREATE TABLE IF NOT EXISTS sqlqueue.schema_version (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
