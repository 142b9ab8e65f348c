"""Plans of trials that found a fault of the product, in the form of `minimizing.command_of`.

After a new feature level or a new kind of fault, `draw_plan` may return another plan for a seed. These plans stay.
"""

from typing import Final

FOUND: Final = {
    "500021: a snapshot with an unhealthy leaf was refused": """
        --seed 500021 --nodes 3 --trouble 240 --routers --no-operator --snapshots --no-requests
        --fault ROUTER_DOWN:37.1:47.9:node-1:0 --fault ROUTER_REFUSES:71.6:94.6:node-3:0
        --fault ROUTER_HANGS:76.5:79.7:node-2:0 --fault KILL:94.2:122.7:node-1:0
        --fault ROUTER_DOWN:98.4:100.1:node-1:0 --fault ROUTER_HANGS:110:139.5:node-3:0
        --fault ROUTER_DOWN:128.9:132.6:node-2:0 --fault SLOW_LINK:133.7:136.1::0.6
        --fault PAUSE:157.4:164.6:node-3:0 --fault ROUTER_DOWN:160.3:183.5:node-3:0
        --fault ROUTER_REFUSES:162.4:171.7:node-2:0 --fault ROUTER_DOWN:166.5:171.7:node-3:0
        --fault ROUTER_DOWN:183.9:196.6:node-1:0 --fault ROUTER_DOWN:190:191.2:node-2:0
        --fault ROUTER_HANGS:192.9:193.7:node-3:0 --fault ROUTER_HANGS:193.5:215.5:node-3:0
        --fault FULL_DISK:193.9:197.9:node-3:0 --fault ROUTER_HANGS:200.3:201:node-1:0
        --fault ROUTER_HANGS:213.6:226.5:node-3:0 --fault ROUTER_DOWN:230.8:240:node-1:0
    """,
    "500041: a snapshot with an unhealthy leaf was refused, again": """
        --seed 500041 --nodes 3 --trouble 240 --routers --no-operator --snapshots --no-requests
        --fault ROUTER_DOWN:15.7:34.5:node-3:0 --fault ROUTER_DOWN:46.5:67.6:node-3:0
        --fault CLOCK_DRIFT:58:73.2:node-3:-0.01 --fault POWER_CUT:80.1:101.3:node-2:0
        --fault POWER_CUT:100.9:104.7:node-1:0 --fault ROUTER_DOWN:122.1:159.5:node-3:0
        --fault ISOLATE:130.3:167.3:node-1:0 --fault KILL:139.5:140.9:node-3:0
        --fault SLOW_LINK:143.3:164.7::0.6 --fault ROUTER_REFUSES:148.4:156.1:node-2:0
        --fault ISOLATE:149.3:151.7:node-2:0 --fault CLOCK_JUMP:153.6:209:node-2:-3600
        --fault PAUSE:155.1:164.1:node-1:0 --fault ROUTER_DOWN:171.5:181.2:node-2:0
        --fault KILL:177.9:184.6:node-1:0 --fault POWER_CUT:192.1:196.4:node-1+node-2+node-3:0
        --fault KILL:216:229.4:node-1:0 --fault ISOLATE:238.3:240:node-1:0
    """,
    "500039: the alarm about a refused structure did not end": """
        --seed 500039 --nodes 3 --trouble 240 --routers --operator --snapshots --no-requests
        --fault ROUTER_DOWN:6.6:43.7:node-2:0 --fault RESTORE:8.5:19.3:node-1:0
        --fault POWER_CUT:21.3:26.2:node-1:0 --fault NEW_KEYS:26.2:33.7:node-1:0
        --fault ONE_WAY:28:48.2:node-1+node-2:0 --fault POWER_CUT:37.1:72.9:node-2:0
        --fault JOIN_AND_LEAVE:37.8:40.4:node-6:0 --fault MOVE:49.1:53.8:node-1:0
        --fault ROUTER_HANGS:54.4:55.5:node-1:0 --fault RESTORE:56.5:62.2:node-1:0
        --fault ROUTER_HANGS:61.2:64.4:node-2:0 --fault KILL:62.4:65.8:node-3:0 --fault MOVE:64.6:70.5:node-3:0
        --fault MOVE:70.6:73:node-3:0 --fault ROUTER_HANGS:75.2:76.3:node-2:0
        --fault FULL_DISK:77.8:101:node-3:0 --fault SLOW_DISK:85.1:103.5:node-3:0.02
        --fault JOIN_AND_EVICT:88.4:92.2:node-11:0 --fault FULL_DISK:93.4:100.5:node-3:0
        --fault ROUTER_REFUSES:111.5:114.9:node-2:0 --fault LOSSY:113.9:120.1::0.3
        --fault ROUTER_REFUSES:120.1:122.8:node-3:0 --fault ROUTER_REFUSES:132.7:145.5:node-2:0
        --fault ROUTER_REFUSES:137.3:159.3:node-2:0 --fault ROUTER_DOWN:140.8:151.7:node-3:0
        --fault FULL_DISK:144.4:161.4:node-3:0 --fault ROUTER_DOWN:153.6:155.7:node-3:0
        --fault ROUTER_HANGS:166.8:226.8:node-2:0 --fault ROUTER_HANGS:177.3:195.6:node-3:0
        --fault STOP:185.3:198.8:node-3:0 --fault PART:233.4:240:node-1:0
    """,
    "940014: a lost voter of level 1 prevented its removal by command": """
        --seed 940014 --nodes 3 --trouble 120 --no-routers --operator --no-snapshots --no-requests
        --fault OLD_VERSION:0:79.6:node-1:1 --fault OLD_VERSION:0:75.6:node-2:1
        --fault OLD_VERSION:0:36.5:node-3:1 --fault REPLACE:11.9:34.5:node-2+node-4:0
        --fault NEW_KEYS:37.8:53.2:node-4:0 --fault ONE_WAY:46.1:62.7:node-1+node-2:0
        --fault ISOLATE:57:76.6:node-1:0 --fault ROTATE:57.6:78.9:node-4:0
        --fault POWER_CUT:63.2:64.7:node-1+node-2+node-3:0 --fault ISOLATE:82.6:86.1:node-2:0
        --fault NEW_KEYS:93.8:115.4:node-4:0 --fault PART:106.5:111:node-2+node-3:0
        --fault CLIENT_KEY:116.7:117.8:node-3:0 --fault SLOW_LINK:117.7:120::0.2 --fault ROT:118.2:120:node-1:0
    """,
    "950203: a leaf excluded before a slow commit was published": """
        --seed 950203 --nodes 3 --trouble 30 --no-routers --operator --no-snapshots --no-requests
        --fault OLD_VERSION:0:17:node-1:2 --fault OLD_VERSION:0:9.9:node-2:2 --fault OLD_VERSION:0:27.5:node-3:2
        --fault MOVE:8.9:17.4:node-2:0 --fault KILL:10.2:18.8:node-1:0 --fault ISOLATE:15.7:17:node-2:0
        --fault ROT:27.5:30:node-3:0
    """,
    "333: a hostile member remained, and the alarm of lacking keys ended": """
        --seed 333 --nodes 3 --trouble 60 --routers --operator --snapshots --no-requests
        --fault HOSTILE:16.5:23.1:node-4:0 --fault POWER_CUT:16.6:39.9:node-3:0 --fault MOVE:23.6:38.5:node-3:0
        --fault ROUTER_REFUSES:37.7:51.8:node-1:0 --fault FULL_DISK:38.9:60:node-1:0 --fault ROT:41.1:51.8:node-2:0
        --fault CLOCK_JUMP:41.7:51.2:node-1:70 --fault ROUTER_REFUSES:51.5:53:node-1:0
        --fault CLIENT_KEY:53.8:60:node-1:0 --fault PAUSE:57.6:60:node-1:0
    """,
}
"""Options of `tests.simulation.farm.searching`, by the seed and its fault."""
