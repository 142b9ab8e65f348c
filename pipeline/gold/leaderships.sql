-- Which servers led, a row a term and leader, and the gaps between: from the log, so that no node's own view is needed.
--
-- A leader writes a clock entry at its election and in each reporting period. A term's first and last one bound what is
-- known of its leadership. The time between one term's last and the next term's first is how long the log shows no
-- leader: an upper bound of the real gap, by at most one reporting period.
--
-- `known` is what the table has, and newer clock entries are put to it.
WITH pieces AS (
  SELECT farm, term, leader_id, first_at, last_at, clock_entries, longest_silence_ms, first_index, last_index
  FROM known
  UNION ALL
  SELECT c.farm, c.term, c.leader_id, c.log_time AS first_at, c.log_time AS last_at, 1 AS clock_entries,
    CAST(NULL AS BIGINT) AS longest_silence_ms, c.index AS first_index, c.index AS last_index
  FROM clocks c
  LEFT JOIN (SELECT farm, max(last_index) AS through FROM known GROUP BY farm) k ON k.farm = c.farm
  WHERE c.log_time IS NOT NULL AND (k.through IS NULL OR c.index > k.through)
),
apart AS (
  SELECT p.*,
    unix_millis(first_at)
      - lag(unix_millis(last_at)) OVER (PARTITION BY farm, term, leader_id ORDER BY first_index) AS silence_ms
  FROM pieces p
),
terms AS (
  SELECT farm, term, leader_id, min(first_at) AS first_at, max(last_at) AS last_at,
    sum(clock_entries) AS clock_entries,
    max(CASE WHEN silence_ms IS NULL OR longest_silence_ms > silence_ms THEN longest_silence_ms ELSE silence_ms END)
      AS longest_silence_ms,
    min(first_index) AS first_index, max(last_index) AS last_index
  FROM apart
  GROUP BY farm, term, leader_id
)
SELECT t.*,
  unix_millis(first_at) - lag(unix_millis(last_at)) OVER (PARTITION BY farm ORDER BY first_index) AS gap_ms,
  coalesce(lag(leader_id) OVER (PARTITION BY farm ORDER BY first_index) <> leader_id, FALSE) AS leader_changed
FROM terms t
