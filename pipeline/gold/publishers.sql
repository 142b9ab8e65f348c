-- Which servers published, a row a reign, and the gaps between.
--
-- A publisher commits to every structure before it signs it. A reign is a run of publications of one server for one
-- master; the time between two reigns is how long no server published.
--
-- `known` is what the table has, and newer publications are put to it.
WITH pieces AS (
  SELECT farm, master, server_id, first_at, last_at, publications, longest_silence_ms, first_index, last_index
  FROM known
  UNION ALL
  SELECT p.farm, p.master, p.server_id, p.log_time AS first_at, p.log_time AS last_at, 1 AS publications,
    CAST(NULL AS BIGINT) AS longest_silence_ms, p.index AS first_index, p.index AS last_index
  FROM publications p
  LEFT JOIN (SELECT farm, max(last_index) AS through FROM known GROUP BY farm) k ON k.farm = p.farm
  WHERE p.log_time IS NOT NULL AND (k.through IS NULL OR p.index > k.through)
),
apart AS (
  SELECT p.*,
    coalesce(lag(server_id) OVER (PARTITION BY farm, master ORDER BY first_index) <> server_id, TRUE) AS begins,
    unix_millis(first_at) - lag(unix_millis(last_at)) OVER (PARTITION BY farm, master ORDER BY first_index) AS since_ms
  FROM pieces p
),
numbered AS (
  SELECT a.*,
    sum(CASE WHEN begins THEN 1 ELSE 0 END) OVER (PARTITION BY farm, master ORDER BY first_index) AS reign,
    CASE WHEN NOT begins THEN since_ms END AS silence_ms
  FROM apart a
),
reigns AS (
  SELECT farm, master, server_id, reign, min(first_at) AS first_at, max(last_at) AS last_at,
    sum(publications) AS publications,
    max(CASE WHEN silence_ms IS NULL OR longest_silence_ms > silence_ms THEN longest_silence_ms ELSE silence_ms END)
      AS longest_silence_ms,
    min(first_index) AS first_index, max(last_index) AS last_index
  FROM numbered
  GROUP BY farm, master, server_id, reign
)
SELECT r.*,
  unix_millis(first_at) - lag(unix_millis(last_at)) OVER (PARTITION BY farm, master ORDER BY first_index) AS gap_ms
FROM reigns r
