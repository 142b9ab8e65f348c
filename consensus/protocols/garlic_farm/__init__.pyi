from .node.client import (
    ClientOptions as ClientOptions,
    GarlicFarmClient as GarlicFarmClient,
    read_barrier_anywhere as read_barrier_anywhere,
)
from .node.client_quota import ClientQuota as ClientQuota
from .node.client_requests import ClientRequests as ClientRequests, SessionStateMachine as SessionStateMachine
from .node.connection import (
    Cancel as Cancel,
    ClientAnswer as ClientAnswer,
    ConnectionOptions as ConnectionOptions,
    RequestHandler as RequestHandler,
    call_server as call_server,
    nothing_to_cancel as nothing_to_cancel,
)
from .node.connectors import (
    Connector as Connector,
    HttpProxy as HttpProxy,
    I2pConnector as I2pConnector,
    PeerAddress as PeerAddress,
    TlsConnector as TlsConnector,
    is_i2p_name as is_i2p_name,
    is_loopback as is_loopback,
)
from .node.dialer import Dialed as Dialed, Dialer as Dialer
from .node.joining import Joining as Joining
from .node.links import LinkOptions as LinkOptions, PeerLinks as PeerLinks
from .node.listener import ConnectionLimits as ConnectionLimits, GarlicFarmServer as GarlicFarmServer
from .node.membership import (
    MemberRequests as MemberRequests,
    Members as Members,
    MembershipOptions as MembershipOptions,
)
from .node.metrics import ConnectionEvent as ConnectionEvent, Incident as Incident, Metrics as Metrics
from .wire.digest import Credentials as Credentials
from .wire.errors import Fault as Fault, GarlicFarmError as GarlicFarmError
from .wire.messages import MembershipRequest as MembershipRequest, Reply as Reply
from .wire.nonces import NonceBook as NonceBook
from .wire.peers import (
    Claim as Claim,
    ListedPeers as ListedPeers,
    PeerDirectory as PeerDirectory,
    ProvenPeer as ProvenPeer,
    Refusal as Refusal,
)
from .wire.proof import (
    ConnectionRole as ConnectionRole,
    is_of_small_order as is_of_small_order,
)
from .wire.proxy import ProxyMode as ProxyMode
from .wire.upgrade import ADMISSIONS_MAX as ADMISSIONS_MAX, INTRODUCTIONS_MAX as INTRODUCTIONS_MAX, Identity as Identity
from .wire.upgrade_client import (
    Initiator as Initiator,
    Session as Session,
)
from .wire.upgrade_server import Authenticator as Authenticator
