from .errors import (
    ConnectError as ConnectError,
    LeafSilentError as LeafSilentError,
    NoLeafError as NoLeafError,
    NoSessionError as NoSessionError,
    StreamLimitError as StreamLimitError,
)
from .farm import (
    DEFAULT_PATIENCE_S as DEFAULT_PATIENCE_S,
    HOPS_MAX as HOPS_MAX,
    FarmClient as FarmClient,
    connect as connect,
    default_cache_dir as default_cache_dir,
)
from .opening import STREAMS_LIMIT as STREAMS_LIMIT
from .status import (
    ClientCounter as ClientCounter,
    ClientLeaf as ClientLeaf,
    DirectoryStatus as DirectoryStatus,
    FarmStatus as FarmStatus,
)
from .stream import FarmStream as FarmStream
