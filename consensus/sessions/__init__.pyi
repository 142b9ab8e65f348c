from .client import (
    ExactlyOnceClient as ExactlyOnceClient,
    SessionExpiredError as SessionExpiredError,
    Submission as Submission,
    Submitter as Submitter,
)
from .dedup_state_machine import (
    DedupStateMachine as DedupStateMachine,
)
from .log_time_clock import SessionClock as SessionClock
from .request_numbers import RequestNumbers as RequestNumbers
from .table import (
    DEFAULT_LIMITS as DEFAULT_LIMITS,
    RequestId as RequestId,
    RequestStatus as RequestStatus,
    SessionLimits as SessionLimits,
    SessionTable as SessionTable,
    SessionTableError as SessionTableError,
    parse_request_id as parse_request_id,
)
from .table_bytes import TableReader as TableReader, number_bytes as number_bytes
