-- leader changes per day, and the lengths of terms
--
--     terms        terms that began that day                changes    terms with another leader than the previous term
--     lasted       from a term's first to its last clock entry: up to a reporting period too short
--     leaderless   from the last clock entry of the previous term: up to a reporting period too long
--
-- A day without a new term does not have a row. The newest term of a farm has not ended, so its length is unknown.
WITH followed AS (
  -- After a correction of log time, a gap is negative: its length is unknown.
  SELECT farm, CAST(first_at AS DATE) AS day, CASE WHEN gap_ms >= 0 THEN gap_ms END AS gap_ms, leader_changed,
    CASE WHEN lead(first_index) OVER (PARTITION BY farm ORDER BY first_index) IS NOT NULL
      THEN unix_millis(last_at) - unix_millis(first_at) END AS lasted_ms
  FROM leaderships
)
SELECT farm, day,
  count(*) AS terms,
  sum(CASE WHEN leader_changed THEN 1 ELSE 0 END) AS changes,
  sum(CASE WHEN lasted_ms < 60000 THEN 1 ELSE 0 END) AS below_a_minute,
  min(lasted_ms) AS shortest_ms,
  percentile_disc(0.5) WITHIN GROUP (ORDER BY lasted_ms) AS median_ms,
  max(gap_ms) AS longest_leaderless_ms,
  sum(gap_ms) AS leaderless_ms
FROM followed
GROUP BY farm, day
ORDER BY changes DESC, below_a_minute DESC, day DESC, farm
