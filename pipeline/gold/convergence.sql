-- How the news of a change to a member spread: a row a change, from the first node that saw it to the last.
--
-- Reports of the same change to the same member that are a minute apart are about two changes. `nodes` counts the nodes
-- of the farm that have a trace: if there are fewer observers, some did not see the change, or one is the member itself.
--
-- Only events with a log time count: the clocks of two nodes are not compared.
--
-- `known` is what the table has, and newer events are put to it: one that comes late may make one change of two.
WITH pieces AS (
  SELECT farm, member, status, first_at, last_at, seen_by FROM known
  UNION ALL
  SELECT farm, member, status, log_time AS first_at, log_time AS last_at, collect_list(node) AS seen_by
  FROM member_events
  WHERE member IS NOT NULL AND is_dated
  GROUP BY farm, member, status, log_time
),
apart AS (
  SELECT p.*,
    unix_millis(first_at) - max(unix_millis(last_at)) OVER (
      PARTITION BY farm, member, status ORDER BY first_at, last_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS apart_ms
  FROM pieces p
),
numbered AS (
  SELECT a.*,
    sum(CASE WHEN apart_ms > 60000 THEN 1 ELSE 0 END) OVER (
      PARTITION BY farm, member, status ORDER BY first_at, last_at
    ) AS change
  FROM apart a
),
changes AS (
  SELECT farm, member, status, change, min(first_at) AS first_at, max(last_at) AS last_at,
    array_sort(array_distinct(flatten(collect_list(seen_by)))) AS seen_by
  FROM numbered
  GROUP BY farm, member, status, change
),
traced AS (
  SELECT farm, count(*) AS nodes FROM members WHERE first_event_at IS NOT NULL GROUP BY farm
)
SELECT c.*, array_size(c.seen_by) AS observers, coalesce(t.nodes, 0) AS nodes,
  unix_millis(c.last_at) - unix_millis(c.first_at) AS converged_ms
FROM changes c
LEFT JOIN traced t ON t.farm IS NOT DISTINCT FROM c.farm
