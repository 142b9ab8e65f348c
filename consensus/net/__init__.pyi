from .accepting import (
    AcceptOptions as AcceptOptions,
    AcceptQueue as AcceptQueue,
    CloseReason as CloseReason,
    KnownSources as KnownSources,
    source_of as source_of,
)
from .backoff import Backoff as Backoff
from .failed_connection import connection_failure as connection_failure
from .memory import MEMORY as MEMORY, MemoryNetwork as MemoryNetwork
from .tls import (
    CERTIFICATE_FILE as CERTIFICATE_FILE,
    CertificateError as CertificateError,
    NodeCertificate as NodeCertificate,
    UntrustedCertificateError as UntrustedCertificateError,
    authority_context as authority_context,
    first_certificate as first_certificate,
    load_or_create_certificate as load_or_create_certificate,
    operator_certificate as operator_certificate,
    secured as secured,
    server_context as server_context,
)
from .tls_stream import TlsStream as TlsStream
from .transfer_time import TransferTime as TransferTime, time_for as time_for
