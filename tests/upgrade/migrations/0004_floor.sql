-- Made up: code that does not know labels is not served any more.
--
-- Serves: 0002
-- Locks: none
SELECT 1;
