-- How soon a silent member was noticed: a row an episode of an observer about a member.
--
-- An episode begins with `member-suspect` (or `member-dead`, if the observer missed the suspicion) and ends with the next
-- `member-alive` or `member-left` of the same observer:
--
--     alive ──▶ suspect ──▶ alive                 `false-suspicion`: it was alive all the time
--               suspect ──▶ dead ──▶ alive        `came-back`
--               suspect ──▶ dead ──▶ left         `left`
--               suspect ──▶ dead                  `dead`, so far
--               suspect                           `suspect`, so far
--
-- An observer that restarts (`node-started`) has forgotten everything: its open episodes stay as they are. A member that
-- is killed and comes back before any observer called it dead counts as a false suspicion too, because it looks like one
-- from outside.
--
-- The distances within an episode are those of the observer's own clock. Its offset to log time is measured anew with
-- each batch of events, and badly for a node that has just started: so only the notice is dated in log time.
--
-- A row is `is_dated` if its notice has a log time. Without one its times are by the observer's clock, so there is no last
-- contact, which is a log time.
--
-- Last contact is the last report of the member that the log holds from before the notice, of that day or the day
-- before; to search all of history for it would cost more with each week. It is the best estimate of when the member
-- was last alive that does not come from the detector itself; its resolution is the reporting period.
--
-- `known` is what the table has, and newer events are put to it: what is open there begins with the events that it was
-- made of. `reports` are those of the days of which something new is known.
WITH lives AS (
  SELECT e.*,
    sum(CASE WHEN kind = 'node-started' THEN 1 ELSE 0 END) OVER (PARTITION BY farm, node ORDER BY time_ms, cursor) AS life
  FROM member_events e
),
newest_lives AS (
  SELECT farm, node, max(life) AS life FROM lives GROUP BY farm, node
),
going_on AS (
  SELECT k.*, least(suspect_at, dead_at) AS noticed_at FROM known k WHERE NOT is_over
),
news AS (
  SELECT farm, node AS observer, life, member, status, time_ms, cursor, log_time, is_dated, member_id,
    CAST(NULL AS BIGINT) AS server_id, CAST(NULL AS TIMESTAMP) AS last_contact
  FROM lives
  WHERE member IS NOT NULL
  UNION ALL
  SELECT farm, observer, 0 AS life, member, 'suspect' AS status,
    noticed_ms + unix_millis(suspect_at) - unix_millis(noticed_at) AS time_ms, -1 AS cursor, suspect_at AS log_time,
    is_dated, member_id, server_id, last_contact
  FROM going_on
  WHERE suspect_at IS NOT NULL
  UNION ALL
  SELECT farm, observer, 0 AS life, member, 'dead' AS status,
    noticed_ms + unix_millis(dead_at) - unix_millis(noticed_at) AS time_ms, -1 AS cursor, dead_at AS log_time,
    is_dated, member_id, server_id, last_contact
  FROM going_on
  WHERE dead_at IS NOT NULL
),
numbered AS (
  SELECT n.*,
    coalesce(sum(CASE WHEN status IN ('alive', 'left') THEN 1 ELSE 0 END) OVER (
      PARTITION BY farm, observer, life, member ORDER BY time_ms, cursor
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS episode,
    CASE WHEN status IN ('suspect', 'dead') THEN time_ms END AS notice_ms
  FROM news n
),
grouped AS (
  SELECT farm, observer, life, member, episode,
    max(member_id) AS member_id, max(server_id) AS server_id, max(last_contact) AS last_contact,
    min(notice_ms) AS noticed_ms, min_by(log_time, notice_ms) AS noticed_at,
    min_by(is_dated, notice_ms) AS is_dated,
    min(CASE WHEN status = 'suspect' THEN time_ms END) AS suspect_ms,
    min(CASE WHEN status = 'dead' THEN time_ms END) AS dead_ms,
    min(CASE WHEN status = 'alive' THEN time_ms END) AS alive_ms,
    min(CASE WHEN status = 'left' THEN time_ms END) AS left_ms
  FROM numbered
  GROUP BY farm, observer, life, member, episode
),
reckoned AS (
  SELECT g.*,
    unix_millis(noticed_at) + suspect_ms - noticed_ms AS suspect_at_ms,
    unix_millis(noticed_at) + dead_ms - noticed_ms AS dead_at_ms,
    unix_millis(noticed_at) + alive_ms - noticed_ms AS back_at_ms
  FROM grouped g
  WHERE noticed_ms IS NOT NULL
),
episodes AS (
  SELECT r.farm, observer, member, member_id, server_id, last_contact, noticed_ms, noticed_at, is_dated,
    CASE WHEN suspect_at_ms BETWEEN 0 AND $latest_ms THEN timestamp_millis(suspect_at_ms) END AS suspect_at,
    CASE WHEN dead_at_ms BETWEEN 0 AND $latest_ms THEN timestamp_millis(dead_at_ms) END AS dead_at,
    CASE WHEN back_at_ms BETWEEN 0 AND $latest_ms THEN timestamp_millis(back_at_ms) END AS back_at,
    dead_ms - suspect_ms AS suspect_to_dead_ms, alive_ms - dead_ms AS dead_to_back_ms,
    CASE
      WHEN left_ms IS NOT NULL THEN 'left'
      WHEN alive_ms IS NOT NULL AND dead_ms IS NOT NULL THEN 'came-back'
      WHEN alive_ms IS NOT NULL THEN 'false-suspicion'
      WHEN dead_ms IS NOT NULL THEN 'dead'
      ELSE 'suspect'
    END AS outcome,
    left_ms IS NOT NULL OR alive_ms IS NOT NULL OR coalesce(r.life < n.life, FALSE) AS is_over
  FROM reckoned r
  LEFT JOIN newest_lives n ON n.farm IS NOT DISTINCT FROM r.farm AND n.node = r.observer
  UNION ALL
  SELECT farm, observer, member, member_id, server_id, last_contact, noticed_ms, least(suspect_at, dead_at) AS noticed_at,
    is_dated, suspect_at, dead_at, back_at, suspect_to_dead_ms, dead_to_back_ms, outcome, is_over
  FROM known
  WHERE is_over
),
identified AS (
  SELECT e.*, coalesce(e.server_id, m.server_id) AS raft_id
  FROM episodes e
  LEFT JOIN members m ON m.farm IS NOT DISTINCT FROM e.farm AND m.member = e.member
),
sought AS (
  SELECT DISTINCT farm, raft_id, noticed_at, CAST(noticed_at AS DATE) AS on_day FROM identified
  UNION
  SELECT DISTINCT farm, raft_id, noticed_at, CAST(noticed_at - INTERVAL 1 DAY AS DATE) AS on_day FROM identified
),
contacts AS (
  SELECT s.farm, s.raft_id, s.noticed_at, max(r.log_time) AS found
  FROM reports r
  JOIN sought s ON s.farm = r.farm AND s.raft_id = r.server_id AND s.on_day = CAST(r.log_time AS DATE)
  WHERE r.log_time <= s.noticed_at
  GROUP BY s.farm, s.raft_id, s.noticed_at
),
dated AS (
  SELECT i.*, greatest(i.last_contact, c.found) AS contact_at
  FROM identified i
  LEFT JOIN contacts c ON c.farm = i.farm AND c.raft_id = i.raft_id AND c.noticed_at = i.noticed_at
    AND i.is_dated
)
SELECT farm, observer, member, member_id, raft_id AS server_id, contact_at AS last_contact, suspect_at, dead_at, back_at,
  unix_millis(suspect_at) - unix_millis(contact_at) AS contact_to_suspect_ms,
  unix_millis(dead_at) - unix_millis(contact_at) AS contact_to_dead_ms,
  suspect_to_dead_ms, dead_to_back_ms, outcome, noticed_ms, is_over, is_dated
FROM dated
