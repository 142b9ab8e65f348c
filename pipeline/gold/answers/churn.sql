-- joined, left, silent and returned servers, per day
-- empty: no server joined or was removed, and no watched server stopped reporting or restarted
--
--     joined, removed                members that a Raft configuration added to the previous one, and removed from it
--     silent, returned, restarted    a watched server becomes silent, reports again, has a restarted router
--
-- NULL: no server of the farm was watched. In the first configuration of the tables, servers do not count as joined. A day
-- without changes does not have a row.
WITH configured AS (
  SELECT farm, index, log_time, array_union(voters, learners) AS members,
    lag(array_union(voters, learners)) OVER (PARTITION BY farm ORDER BY index) AS earlier
  FROM configurations
),
changes AS (
  SELECT farm, CAST(log_time AS DATE) AS day, 'joined' AS what, array_size(array_except(members, earlier)) AS servers
  FROM configured WHERE earlier IS NOT NULL
  UNION ALL
  SELECT farm, CAST(log_time AS DATE) AS day, 'removed' AS what, array_size(array_except(earlier, members)) AS servers
  FROM configured WHERE earlier IS NOT NULL
  UNION ALL
  SELECT farm, CAST(t.at AS DATE) AS day,
    CASE WHEN state = 'silent' THEN 'silent' WHEN previous = 'silent' THEN 'returned' ELSE 'restarted' END AS what,
    1 AS servers
  FROM transitions t WHERE state = 'silent' OR previous = 'silent' OR reason = 'router restarted'
),
watched AS (
  SELECT farm, 0 AS nothing FROM transitions GROUP BY farm
)
SELECT c.farm, c.day,
  sum(CASE WHEN what = 'joined' THEN servers ELSE 0 END) AS joined,
  sum(CASE WHEN what = 'removed' THEN servers ELSE 0 END) AS removed,
  sum(CASE WHEN what = 'silent' THEN servers ELSE w.nothing END) AS silent,
  sum(CASE WHEN what = 'returned' THEN servers ELSE w.nothing END) AS returned,
  sum(CASE WHEN what = 'restarted' THEN servers ELSE w.nothing END) AS restarted
FROM changes c
LEFT JOIN watched w ON w.farm = c.farm
WHERE c.servers > 0
GROUP BY c.farm, c.day
ORDER BY sum(c.servers) DESC, c.day DESC, c.farm
