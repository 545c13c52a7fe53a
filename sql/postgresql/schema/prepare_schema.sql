-- Create the schema itself and the record of the migrations applied to it, which every migration needs.
--
-- serves_from is the oldest code that works on the schema with the migration; the largest of all rows counts.
-- Roles: none but the owner.
CREATE SCHEMA IF NOT EXISTS sqlqueue;

CREATE TABLE IF NOT EXISTS sqlqueue.schema_version (
    version     integer     PRIMARY KEY,
    name        text        NOT NULL,
    serves_from integer     NOT NULL CHECK (serves_from BETWEEN 1 AND version),
    applied_at  timestamptz NOT NULL DEFAULT now()
);
