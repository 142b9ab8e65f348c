from .operators.log_records import (
    LogRecord as LogRecord,
    LogStart as LogStart,
    control_text as control_text,
    stored_fault as stored_fault,
    stored_records as stored_records,
)
from .operators.quorum_client import (
    ChangeAnswer as ChangeAnswer,
    QuorumClient as QuorumClient,
    QuorumClientError as QuorumClientError,
    QuorumDescription as QuorumDescription,
    QuorumReplica as QuorumReplica,
)
from .operators.quorum_directory import (
    META_FILE as META_FILE,
    QuorumDirectory as QuorumDirectory,
    QuorumDirectoryError as QuorumDirectoryError,
    format_directory as format_directory,
    new_uuid as new_uuid,
    parse_initial_voters as parse_initial_voters,
    read_directory as read_directory,
)
from .operators.security_settings import (
    scram_users as scram_users,
    server_security as server_security,
    split_settings as split_settings,
    tool_security as tool_security,
)
from .operators.settings import (
    Endpoint as Endpoint,
    SettingsError as SettingsError,
    NamedVoter as NamedVoter,
    VoterSettings as VoterSettings,
    address as address,
    endpoints as endpoints,
    parse_properties as parse_properties,
    voter_settings as voter_settings,
)
from .replica.announcing import AddressRefused as AddressRefused, is_loopback as is_loopback
from .replica.metrics import (
    STATES as STATES,
    QuorumFigures as QuorumFigures,
)
from .replica.open_voter import (
    KraftVoter as KraftVoter,
    VoterError as VoterError,
    VoterOptions as VoterOptions,
    open_voter as open_voter,
)
