from .effects import (
    Announce as Announce,
    Effect as Effect,
    OfferToken as OfferToken,
    QueryAnswered as QueryAnswered,
    QueryEnded as QueryEnded,
    Send as Send,
    UseKeyring as UseKeyring,
)
from .events import (
    AnswerGiven as AnswerGiven,
    DeadlineReached as DeadlineReached,
    Event as Event,
    KeyringChanged as KeyringChanged,
    LeaveRequested as LeaveRequested,
    MaintenanceSwitched as MaintenanceSwitched,
    MetadataChanged as MetadataChanged,
    QueryRequested as QueryRequested,
    Received as Received,
    SeedsGiven as SeedsGiven,
    Unreadable as Unreadable,
    UserEventRequested as UserEventRequested,
)
from .messages import (
    AliveUpdate as AliveUpdate,
    JoinAck as JoinAck,
    JoinReq as JoinReq,
    Message as Message,
    Payload as Payload,
    PingRequest as PingRequest,
    PingResponse as PingResponse,
)
from .options import SwimOptions as SwimOptions
from .swim import Swim as Swim
