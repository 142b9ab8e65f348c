-- times to detect dead members, compared with SWIM's expectation
-- empty: the traces contain no suspected or dead member
--
--     kind         farm      losses of its members, by the first observer of each
--                  member    the same for one member          observer    losses detected by one node
--     loss         suspicions of a member less than a minute apart, or without a report or return of it between them
--     false        the member returned without a restart of its node: by its own trace it was alive
--     unjudged     the member's trace does not decide, or the member is only suspect so far
--     detection    a loss that is not false, with a known restart or a verdict `dead`
--
-- Expectations, by the gossip timing of the nodes (`gossip.SwimOptions`; by default `lan`):
--
--     suspect      period * e / (e - 1)      until the first member suspects it (Das, Gupta and Motivala 2002)
--     suspicion    from multiplier * max(1, log10(members)) * period, if enough members confirm it, to a multiple of
--                  that without confirmation (Lifeguard). With fewer members than `multiplier`: the former only
--     dead         the sum of both, if confirmed
--
-- `suspect_…` and `dead_…` count from the last report of the member, so they are up to a reporting period too long
-- (`uncertain_ms`); `suspicion_…` is by the clock of the observer with the longest suspicion. NULL: not known.
WITH alone AS (
  SELECT CASE WHEN count(*) = 1 THEN max(farm) END AS farm FROM current_farm
),
trace AS (
  -- An event read from a node and from a file counts once. NULL: an event of a file without log time.
  SELECT coalesce(e.farm, a.farm) AS farm, node, kind, unix_millis(min(log_time)) AS at_ms
  FROM events e CROSS JOIN alone a
  -- The first start of a node is not a restart.
  WHERE kind <> 'node-started' OR coalesce(get_json_object(data, '$.generation'), '') <> '1'
  GROUP BY coalesce(e.farm, a.farm), node, cursor, time_ms, kind
),
-- The restarts of nodes, and the time ranges of lost events, in which restarts are unknown: for an event without log
-- time this is all of time, since the clock of its node is not comparable.
gaps AS (
  SELECT farm, node, TRUE AS restarts, at_ms AS from_ms, at_ms AS until_ms
  FROM trace WHERE kind = 'node-started' AND at_ms IS NOT NULL
  UNION ALL
  SELECT DISTINCT farm, node, FALSE AS restarts, 0 AS from_ms, 253402300799999 AS until_ms
  FROM trace WHERE kind IN ('node-started', 'events-lost') AND at_ms IS NULL
  UNION ALL
  SELECT l.farm, l.node, FALSE AS restarts, coalesce(max(t.at_ms), 0) AS from_ms, l.at_ms AS until_ms
  FROM trace l
  LEFT JOIN trace t ON t.farm IS NOT DISTINCT FROM l.farm AND t.node = l.node AND t.at_ms < l.at_ms
  WHERE l.kind = 'events-lost' AND l.at_ms IS NOT NULL
  GROUP BY l.farm, l.node, l.at_ms
),
noticed AS (
  SELECT farm, observer, member, outcome, contact_to_suspect_ms, contact_to_dead_ms, suspect_to_dead_ms,
    unix_millis(last_contact) AS contact_ms, unix_millis(back_at) AS back_ms,
    unix_millis(least(suspect_at, dead_at)) AS notice_ms,
    CASE WHEN outcome IN ('dead', 'came-back') THEN 1 ELSE 0 END AS is_dead
  FROM detections
  WHERE outcome <> 'left' AND least(suspect_at, dead_at) IS NOT NULL
    -- Without a log time the clocks of two nodes would be compared. NULL: an earlier version made the row.
    AND coalesce(is_dated, TRUE)
),
-- A margin of a minute allows for inaccurate clock offsets, as of a node that has just started.
returns AS (
  SELECT n.farm, n.member, n.notice_ms, n.back_ms,
    max(CASE WHEN g.restarts THEN 1 ELSE 0 END) AS restarted, max(CASE WHEN g.restarts THEN 0 ELSE 1 END) AS lost,
    count(g.node) AS gaps
  FROM (SELECT DISTINCT farm, member, notice_ms, back_ms FROM noticed WHERE back_ms IS NOT NULL) n
  LEFT JOIN gaps g ON g.farm IS NOT DISTINCT FROM n.farm AND g.node = n.member
    AND g.from_ms <= n.back_ms + 60000 AND g.until_ms >= n.notice_ms - 60000
  GROUP BY n.farm, n.member, n.notice_ms, n.back_ms
),
-- Of several observers of a loss, the observer with the highest `known` has the most information.
judged AS (
  SELECT n.*,
    CASE
      WHEN outcome = 'suspect' THEN 0
      WHEN outcome = 'dead' THEN 1
      WHEN r.gaps > 0 AND r.restarted = 1 THEN 4
      WHEN (r.gaps = 0 OR r.lost = 0)
        AND unix_millis(m.first_event_at) <= n.notice_ms AND unix_millis(m.last_event_at) >= n.back_ms THEN 3
      ELSE 2
    END AS known,
    lag(n.notice_ms) OVER in_order AS before_ms, lag(n.back_ms) OVER in_order AS back_before_ms
  FROM noticed n
  LEFT JOIN returns r ON r.farm IS NOT DISTINCT FROM n.farm AND r.member = n.member AND r.notice_ms = n.notice_ms
    AND r.back_ms = n.back_ms
  LEFT JOIN members m ON m.farm IS NOT DISTINCT FROM n.farm AND m.member = n.member
  WINDOW in_order AS (PARTITION BY n.farm, n.member ORDER BY n.notice_ms, n.observer, n.back_ms)
),
numbered AS (
  SELECT j.*,
    sum(CASE
      WHEN notice_ms - before_ms <= 60000 THEN 0
      WHEN back_before_ms IS NULL AND contact_ms <= before_ms THEN 0
      ELSE 1
    END) OVER (PARTITION BY farm, member ORDER BY notice_ms, observer, back_ms ROWS UNBOUNDED PRECEDING) AS loss
  FROM judged j
),
-- An observer with a much later event, for example after its start, did not detect the loss.
timed AS (
  SELECT n.*, notice_ms - min(notice_ms) OVER (PARTITION BY farm, member, loss) <= 60000 AS in_time FROM numbered n
),
losses AS (
  SELECT farm, member, max(known) AS known, max(is_dead) AS is_dead,
    min(CASE WHEN in_time THEN contact_to_suspect_ms END) AS suspect_ms,
    min(CASE WHEN in_time THEN contact_to_dead_ms END) AS dead_ms,
    max(suspect_to_dead_ms) AS suspicion_ms
  FROM timed
  GROUP BY farm, member, loss
),
cases AS (
  SELECT farm, 'farm' AS kind, farm AS name, known, is_dead, suspect_ms, dead_ms, suspicion_ms FROM losses
  UNION ALL
  SELECT farm, 'member' AS kind, member AS name, known, is_dead, suspect_ms, dead_ms, suspicion_ms FROM losses
  UNION ALL
  SELECT farm, 'observer' AS kind, observer AS name, known, is_dead,
    CASE WHEN in_time THEN contact_to_suspect_ms END AS suspect_ms,
    CASE WHEN in_time THEN contact_to_dead_ms END AS dead_ms, suspect_to_dead_ms AS suspicion_ms
  FROM timed
),
classified AS (
  SELECT c.*,
    CASE WHEN known IN (1, 4) OR (known = 2 AND is_dead = 1) THEN 1 ELSE 0 END AS detected,
    CASE WHEN known = 3 THEN 1 ELSE 0 END AS false_alarm,
    CASE WHEN known IN (0, 2) THEN 1 ELSE 0 END AS unjudged
  FROM cases c
),
summed AS (
  SELECT farm, kind, name, count(*) AS suspicions, sum(detected) AS detections,
    sum(false_alarm * (1 - is_dead)) AS false_suspicions, sum(false_alarm * is_dead) AS false_deaths,
    sum(unjudged) AS unjudged,
    round(CAST(sum(false_alarm) AS DOUBLE) / nullif(count(*) - sum(unjudged), 0), 6) AS false_positive_rate,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY CASE WHEN detected = 1 THEN suspect_ms END) AS suspect_median_ms,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY CASE WHEN detected = 1 THEN suspect_ms END) AS suspect_p99_ms,
    max(CASE WHEN detected = 1 THEN suspect_ms END) AS suspect_max_ms,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY CASE WHEN detected = 1 THEN dead_ms END) AS dead_median_ms,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY CASE WHEN detected = 1 THEN dead_ms END) AS dead_p99_ms,
    max(CASE WHEN detected = 1 THEN dead_ms END) AS dead_max_ms,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY CASE WHEN detected = 1 THEN suspicion_ms END) AS suspicion_median_ms,
    max(CASE WHEN detected = 1 THEN suspicion_ms END) AS suspicion_max_ms
  FROM classified
  GROUP BY farm, kind, name
),
named AS (
  SELECT farm, member FROM members
  UNION
  SELECT farm, member FROM detections
  UNION
  SELECT farm, observer AS member FROM detections
),
expected AS (
  SELECT farm, CAST(round($probe_period_ms * exp(1) / (exp(1) - 1)) AS BIGINT) AS suspect_ms,
    CAST(round($suspicion_multiplier * greatest(1, log10(count(*))) * $probe_period_ms) AS BIGINT) AS confirmed_ms,
    CASE WHEN count(*) >= $suspicion_multiplier THEN $suspicion_max_multiplier ELSE 1 END AS unconfirmed
  FROM named
  GROUP BY farm
)
SELECT s.farm, s.kind, s.name, CAST(suspicions AS BIGINT) AS suspicions, CAST(detections AS BIGINT) AS detections,
  CAST(false_suspicions AS BIGINT) AS false_suspicions, CAST(false_deaths AS BIGINT) AS false_deaths,
  CAST(unjudged AS BIGINT) AS unjudged, false_positive_rate,
  suspect_median_ms, suspect_p99_ms, suspect_max_ms, e.suspect_ms AS suspect_expected_ms,
  dead_median_ms, dead_p99_ms, dead_max_ms, e.suspect_ms + e.confirmed_ms AS dead_expected_ms,
  suspicion_median_ms, suspicion_max_ms, e.confirmed_ms AS suspicion_expected_min_ms,
  e.confirmed_ms * e.unconfirmed AS suspicion_expected_max_ms, f.period_ms AS uncertain_ms
FROM summed s
JOIN expected e ON e.farm IS NOT DISTINCT FROM s.farm
LEFT JOIN current_farm f ON f.farm = s.farm
ORDER BY CASE s.kind WHEN 'farm' THEN 1 WHEN 'member' THEN 2 ELSE 3 END, dead_max_ms DESC NULLS LAST,
  false_positive_rate DESC NULLS LAST, suspicions DESC, s.farm NULLS LAST, s.name
