-- Record a set of SQL functions as installed, in the transaction that created them.
--
-- Parameters: name, digest, library text. Locks: the set's row.
-- Roles: none but the owner.
INSERT INTO sqlqueue.function_set AS s (name, digest, library)
VALUES (:name, :digest, :library)
ON CONFLICT (name) DO UPDATE
SET digest = EXCLUDED.digest, library = EXCLUDED.library, installed_at = now()
