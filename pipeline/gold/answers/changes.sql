-- changes in a farm around a moment, or around its last outage
-- empty: nothing changed in this time; choose another one with --at and --minutes
--
--     moment     the given time (--at); else the start of the farm's last outage, else its newest log time
--     after_ms   milliseconds from the moment to the change; negative before it
--     kind       leader, membership, key, level, factor, leaf, period, time, publisher, server (watched state), or
--                member
--     subject    a Raft id, a pseudonym, or the name of a member
--     observers  number of nodes with the event in their traces; NULL for an entry of the log, which all nodes have
--
-- Times are log time, so changes of different nodes are in one order. A change without log time is not listed.
WITH moments AS (
  SELECT f.farm, coalesce($moment, max(CASE WHEN t.state <> 'healthy' AND t.previous = 'healthy' THEN t.at END),
    max(f.log_time)) AS moment
  -- Before a correction of log time, an outage can have a later time than the newest entry.
  FROM current_farm f LEFT JOIN transitions t ON t.farm = f.farm AND t.at <= f.log_time
  GROUP BY f.farm
),
led AS (
  SELECT farm, index, log_time, term, leader_id,
    lag(leader_id) OVER (PARTITION BY farm ORDER BY index) AS leader_before,
    lag(term) OVER (PARTITION BY farm ORDER BY index) AS term_before
  FROM clocks
),
paced AS (
  SELECT farm, index, log_time, period_ms, lag(period_ms) OVER (PARTITION BY farm ORDER BY index) AS period_before
  FROM clocks WHERE period_ms IS NOT NULL
),
configured AS (
  SELECT farm, index, log_time, voters, learners, joint,
    lag(voters) OVER (PARTITION BY farm ORDER BY index) AS voters_before,
    lag(learners) OVER (PARTITION BY farm ORDER BY index) AS learners_before
  FROM configurations
),
published AS (
  SELECT farm, index, log_time, master, server_id,
    lag(server_id) OVER (PARTITION BY farm, master ORDER BY index) AS server_before
  FROM publications
),
weighed AS (
  SELECT farm, index, log_time, destination, factor,
    lag(factor) OVER (PARTITION BY farm, destination ORDER BY index) AS factor_before
  FROM factors
),
changes AS (
  SELECT farm, log_time, index, 'leader' AS kind, CAST(leader_id AS STRING) AS subject,
    'server ' || CAST(leader_before AS STRING) || ' in term ' || CAST(term_before AS STRING) || ', then server '
      || CAST(leader_id AS STRING) || ' in term ' || CAST(term AS STRING) AS change, CAST(NULL AS BIGINT) AS observers
  FROM led WHERE leader_id <> leader_before OR term <> term_before
  UNION ALL
  SELECT farm, log_time, index, 'period', NULL,
    CAST(period_before AS STRING) || ' ms, then ' || CAST(period_ms AS STRING) || ' ms', NULL
  FROM paced WHERE period_ms <> period_before
  UNION ALL
  SELECT farm, log_time, index, 'membership', NULL,
    'voters ' || CAST(voters AS STRING) || ', learners ' || CAST(learners AS STRING)
      || CASE WHEN joint THEN ', two majorities' ELSE '' END, NULL
  FROM configured
  WHERE voters_before IS NULL OR voters <> voters_before OR learners <> learners_before OR joint
  UNION ALL
  SELECT farm, log_time, index,
    CASE WHEN action IN ('rekeying', 'client') THEN 'key' WHEN action = 'level' THEN 'level'
      WHEN action = 'handover' THEN 'leader' WHEN action = 'cost' THEN 'factor' WHEN action = 'exclusion' THEN 'leaf'
      WHEN action = 'force' THEN 'publisher' WHEN action = 'correction' THEN 'time'
      ELSE 'membership' END,
    -- The members of a JSON object as words: {"name":"a","level":2} becomes name a, level 2.
    subject,
    trim(action || ' ' || translate(replace(replace(replace(detail, '":', '" '), ',"', ', "'), '  ', ' '), '{}"', '')),
    NULL
  FROM operator_actions
  UNION ALL
  SELECT farm, log_time, index, 'factor', destination,
    coalesce(CAST(factor_before AS STRING), 'no factor') || ', then ' || CAST(factor AS STRING), NULL
  FROM weighed WHERE factor_before IS NULL OR factor <> factor_before
  UNION ALL
  SELECT farm, log_time, index, 'publisher', master,
    coalesce('server ' || CAST(server_before AS STRING), 'unknown') || ', then server ' || CAST(server_id AS STRING),
    NULL
  FROM published WHERE server_before IS NULL OR server_id <> server_before
  UNION ALL
  SELECT t.farm, t.at, t.index, 'server', CAST(server_id AS STRING),
    CASE WHEN previous = '' THEN '' ELSE previous || ', then ' END || state || ': ' || reason, NULL
  FROM transitions t
  UNION ALL
  SELECT coalesce(s.farm, f.farm), first_at, NULL, 'member', member, status, observers
  FROM convergence s CROSS JOIN (SELECT CASE WHEN count(*) = 1 THEN max(farm) END AS farm FROM current_farm) f
)
SELECT c.farm, c.log_time, unix_millis(c.log_time) - unix_millis(m.moment) AS after_ms, c.kind, c.subject,
  c.index, c.observers, c.change
FROM changes c JOIN moments m ON m.farm = c.farm
WHERE unix_millis(c.log_time) BETWEEN unix_millis(m.moment) - $around_ms AND unix_millis(m.moment) + $around_ms
ORDER BY c.farm, c.log_time, c.index NULLS LAST, c.kind, c.subject
