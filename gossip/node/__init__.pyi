from .discovery import LanInterface as LanInterface, lan_interfaces as lan_interfaces
from .endpoints import (
    dialed as dialed,
    endpoint as endpoint,
    is_private as is_private,
    may_gossip as may_gossip,
    numeric as numeric,
    numeric_address as numeric_address,
    parse_endpoint as parse_endpoint,
)
from .limits import SourceLimit as SourceLimit
from .settings import DEFAULT_CAPACITY as DEFAULT_CAPACITY, SEEDS_LIMIT as SEEDS_LIMIT
from .state_files import (
    GenerationKeeper as GenerationKeeper,
    NodeIdentity as NodeIdentity,
    begin_generation as begin_generation,
    exclusive as exclusive,
    keep_generation as keep_generation,
    known_keyring as known_keyring,
    load_identity as load_identity,
    reset_stored_era as reset_stored_era,
    save_identity as save_identity,
)
