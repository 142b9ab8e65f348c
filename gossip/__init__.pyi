from .core.messages import CountedDrop as CountedDrop, DropReason as DropReason
from .core.effects import (
    AdoptGeneration as AdoptGeneration,
    Alarm as Alarm,
    AlarmKind as AlarmKind,
    KeyOffered as KeyOffered,
    KeyringUpdateRefused as KeyringUpdateRefused,
    MembershipChanged as MembershipChanged,
    QueryReceived as QueryReceived,
    UserEventReceived as UserEventReceived,
    equivocation as equivocation,
    rolled_back as rolled_back,
)
from .core.keyring import (
    CLOCK_LIMIT as CLOCK_LIMIT,
    ERA_LIMIT as ERA_LIMIT,
    KEY_BYTES as KEY_BYTES,
    KEYS_LIMIT as KEYS_LIMIT,
    LABEL_BYTES as LABEL_BYTES,
    ClockBound as ClockBound,
    Keyring as Keyring,
    KeyringError as KeyringError,
    KeyState as KeyState,
    farm_label as farm_label,
    key_id as key_id,
)
from .core.member import (
    INCARNATION_LIMIT as INCARNATION_LIMIT,
    LAST_GENERATION as LAST_GENERATION,
    METADATA_LIMIT_BYTES as METADATA_LIMIT_BYTES,
    Address as Address,
    Incarnation as Incarnation,
    NodeId as NodeId,
    NodeInfo as NodeInfo,
    Status as Status,
    equivocate as equivocate,
    is_plausible as is_plausible,
)
from .core.membership import Description as Description, Member as Member
from .core.messages import JoinNak as JoinNak, Query as Query, UserEvent as UserEvent
from .core.options import SwimOptions as SwimOptions
from .core.swim import Swim as Swim
from .node.event_ring import EventRing as EventRing, Numbered as Numbered, Reader as Reader
from .node.group import EVENTS_LIMIT as EVENTS_LIMIT, Group as Group, GroupEvent as GroupEvent, open_group as open_group
from .node.key_manager import KeyManager as KeyManager, ListedKey as ListedKey, NotEverywhereError as NotEverywhereError
from .node.limits import (
    GroupDescription as GroupDescription,
    Loss as Loss,
    OtherFarm as OtherFarm,
    WireDescription as WireDescription,
)
from .node.requests import Answer as Answer, BusyError as BusyError
from .node.settings import ConfigError as ConfigError, GroupSettings as GroupSettings
from .node.state_files import StateError as StateError
from .wire.seal import SealFault as SealFault
