"""The boundary of the process: the functions of the operating system, replaced while a world runs.

    clocks        time.time, monotonic, …   the clocks of the machine whose task calls
    randomness    os.urandom, Random(), generated keys       the random source of that machine
    threads       trio.to_thread, DiskThread                 in place, in virtual time (`disk_work`)
    network       UdpNetwork, trio's sockets, interfaces     in memory (`datagrams`, `sockets`)
    process       signals, its number, figures of the host   the machine's

A task without a machine (a test's own) gets the real function. Modules import many of these names directly, use them as
default arguments, or keep them in a dataclass. So `rebind` looks for them in all modules of the product.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, tzinfo
from functools import lru_cache
from importlib import import_module
from pkgutil import walk_packages
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final, Self

import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import bridge.node
import consensus
import gossip
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.node.membership import member_directory
from bridge.node.settings import machine
from bridge.wire.log import proof
from consensus.server import applying
from consensus.storage.disk_thread import DiskThread
from gossip.node import LanInterface, lan_interfaces, resumption
from gossip.node.udp import UdpNetwork
from tests.simulation.farm.datagrams import HostDatagrams, MemoryDatagrams
from tests.simulation.farm.disk_work import DiskWorker, in_place
from tests.simulation.farm.host import Host, current_host
from tests.simulation.farm.sockets import Sockets, interposed_sockets
from tests.simulation.farm.versions import COMPARING, LevelOfHost, metadata_of_level

NETWORK_BITS: Final = ".255"
_PRODUCT: Final = ("bridge.", "consensus.", "gossip.")
_NS: Final = 1_000_000_000
APPLIED_AT_ONCE: Final = 1
"""Limit of the entries between two possible yields: the entries of a trial are few."""
PROOFS_MAX: Final = 256
"""Number of verified entries whose results are cached, because all nodes verify the same entries."""
Replacement = tuple[object, object]


class _Random(random.Random):
    """A random source; without a seed it is seeded by the machine of the calling task."""

    def __init__(self, seed: Any = None) -> None:
        host = current_host.get()
        super().__init__(host.random.getrandbits(128) if seed is None and host is not None else seed)


class _Datetime(datetime):
    """A `datetime` with the present of the calling task's machine."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        host = current_host.get()
        return super().now(tz) if host is None else cls.fromtimestamp(host.wall_s, tz)


class _Modules:
    """Every module of the product, imported once: later imports would bind the replaced names."""

    loaded: tuple[ModuleType, ...] = ()

    @classmethod
    def all(cls) -> tuple[ModuleType, ...]:
        """Return the modules of the three packages that a node may load."""
        if not cls.loaded:
            for package in (consensus, gossip, bridge.node):
                for each in walk_packages(package.__path__, f"{package.__name__}."):
                    if not each.name.endswith("__main__"):
                        import_module(each.name)
            cls.loaded = tuple(module for name, module in sorted(sys.modules.items()) if name.startswith(_PRODUCT))
        return cls.loaded


def _of_host(real: Callable[..., Any], own: Callable[[Host], Any]) -> Callable[..., Any]:
    """Return a function that takes the machine's value, or calls the real function without a machine."""

    def call(*arguments: Any) -> Any:
        host = current_host.get()
        return real(*arguments) if host is None else own(host)

    return call


def _clocks() -> dict[str, Callable[..., Any]]:
    return {
        "time": _of_host(time.time, lambda host: host.wall_s),
        "time_ns": _of_host(time.time_ns, lambda host: int(host.wall_s * 1_000_000) * 1000),
        "monotonic": _of_host(time.monotonic, lambda host: host.monotonic_s),
        "monotonic_ns": _of_host(time.monotonic_ns, lambda host: int(host.monotonic_s * 1_000_000) * 1000),
        "perf_counter": _of_host(time.perf_counter, lambda host: host.monotonic_s),
        "perf_counter_ns": _of_host(time.perf_counter_ns, lambda host: int(host.monotonic_s * _NS)),
        "process_time": _of_host(time.process_time, lambda host: host.monotonic_s / 100),
        "clock_gettime_ns": _of_host(time.clock_gettime_ns, lambda host: int(host.monotonic_s * 1_000_000) * 1000),
    }


def _random_bytes(real: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def urandom(size: int) -> bytes:
        host = current_host.get()
        return real(size) if host is None else host.random.randbytes(size)

    return urandom


def _generated(kind: Any, size_bytes: int) -> Any:
    """Return a replacement of a class method that generates a key."""
    real = kind.generate

    def generate(_: type) -> Any:
        host = current_host.get()
        return real() if host is None else kind.from_private_bytes(host.random.randbytes(size_bytes))

    return classmethod(generate)


def _curve_key(curve: ec.EllipticCurve, backend: Any = None) -> ec.EllipticCurvePrivateKey:
    host = current_host.get()
    if host is None:
        return _REAL_CURVE_KEY(curve, backend)
    return ec.derive_private_key(1 + host.random.getrandbits(curve.key_size - 1), curve)


_REAL_CURVE_KEY: Final = ec.generate_private_key
_REAL_SIGN: Final = x509.CertificateBuilder.sign


def _sign(builder: x509.CertificateBuilder, key: Any, algorithm: Any, **options: Any) -> x509.Certificate:
    """Sign a certificate without a random number, so that its fingerprint depends on its content and key alone."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        options["ecdsa_deterministic"] = True
    return _REAL_SIGN(builder, key, algorithm, **options)


def _signals(real: Callable[..., AbstractContextManager[Any]]) -> Callable[..., AbstractContextManager[Any]]:
    @contextmanager
    def receiver(*numbers: signal.Signals) -> Iterator[Any]:
        host = current_host.get()
        if host is None or host.run is None:
            with real(*numbers) as signals:
                yield signals
            return
        send, receive = trio.open_memory_channel[int](16)
        host.run.signals.append(send)
        yield receive

    return receiver


def interfaces_of(host: Host) -> list[LanInterface]:
    """Return the interfaces of a machine: one for each address, in networks of 256 addresses."""
    return [
        LanInterface(f"eth{number}", address, address.rpartition(".")[0] + NETWORK_BITS)
        for number, address in enumerate(host.addresses)
    ]


def _interfaces() -> list[LanInterface]:
    host = current_host.get()
    return lan_interfaces() if host is None else interfaces_of(host)


def _route_host() -> str | None:
    host = current_host.get()
    return _REAL_ROUTE_HOST() if host is None else next(iter(host.addresses), None)


_REAL_ROUTE_HOST: Final = machine.default_route_host


def _figures() -> SimpleNamespace:
    """Return the part of psutil for the sampler of the host: a machine without load."""
    return SimpleNamespace(
        Process=lambda: SimpleNamespace(create_time=time.time),
        cpu_percent=lambda interval: 1.0,  # noqa: ARG005 - psutil's parameter
        virtual_memory=lambda: SimpleNamespace(percent=20.0),
        net_io_counters=lambda pernic: {},  # noqa: ARG005 - psutil's parameter
        Error=OSError,
    )


class _YieldTime(float):
    """A time between two yields that has passed immediately or not, by the random source of the calling machine.

    Virtual time does not advance while the state machine applies entries, so the product's time would never pass.
    """

    def __radd__(self, now_s: float) -> float:
        host = current_host.get()
        return now_s + (host.random.choice((0.0, float(self))) if host is not None else float(self))


class Patches:
    """Attributes and other places, replaced until the end of the block."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def set(self, owner: object, name: str, value: object) -> None:
        before = vars(owner)[name]
        setattr(owner, name, value)
        self._undo.callback(setattr, owner, name, before)

    def rebind(self, replaced: list[Replacement]) -> None:
        """Replace values in all modules of the product: names, default arguments, and variables of closures."""
        values = {id(old): new for old, new in replaced}
        for each in _Modules.all():
            for name, value in list(vars(each).items()):
                if id(value) in values:
                    self.set(each, name, values[id(value)])
                elif isinstance(value, FunctionType) and value.__module__ == each.__name__:
                    self._rebind_function(value, values)
                elif isinstance(value, type) and value.__module__ == each.__name__:
                    for default in getattr(value, "__struct_defaults__", ()):
                        # Defaults of a Struct cannot be replaced: such a class must be a dataclass.
                        assert id(getattr(default, "factory", default)) not in values, f"{value}: {default}"
                    for member in list(vars(value).values()):
                        function = getattr(member, "__func__", member)
                        if isinstance(function, FunctionType):
                            self._rebind_function(function, values)

    def _rebind_function(self, function: FunctionType, values: dict[int, object]) -> None:
        defaults, named = function.__defaults__, function.__kwdefaults__
        if defaults and any(id(each) in values for each in defaults):
            function.__defaults__ = tuple(values.get(id(each), each) for each in defaults)
            self._undo.callback(setattr, function, "__defaults__", defaults)
        if named and any(id(each) in values for each in named.values()):
            function.__kwdefaults__ = {name: values.get(id(each), each) for name, each in named.items()}
            self._undo.callback(setattr, function, "__kwdefaults__", named)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # a closure's variable that is not set yet
                continue
            if id(content) in values:
                cell.cell_contents = values[id(content)]
                self._undo.callback(setattr, cell, "cell_contents", content)


def _udp_network(datagrams: MemoryDatagrams) -> Callable[..., HostDatagrams | UdpNetwork]:
    def network(interface: str | None = None) -> HostDatagrams | UdpNetwork:
        host = current_host.get()
        return UdpNetwork(interface) if host is None else datagrams.of(host)

    return network


@contextmanager
def interposed(datagrams: MemoryDatagrams, sockets: Sockets) -> Iterator[None]:
    """Replace the operating system for tasks of machines, in a trio run, until the end of the block."""
    _Modules.all()
    with ExitStack() as undo:
        patches = Patches(undo)
        replaced: list[Replacement] = [
            (os.urandom, urandom := _random_bytes(os.urandom)),
            (random.Random, _Random),
            (DiskThread, DiskWorker),
            (UdpNetwork, _udp_network(datagrams)),
            (lan_interfaces, _interfaces),
            (machine.default_route_host, _route_host),
            (resumption._read_boot_id, _of_host(resumption._read_boot_id, lambda host: host.boot_id)),
            (ec.generate_private_key, _curve_key),
            (proof.proven, lru_cache(PROOFS_MAX)(proof.proven)),
            (member_directory.first_metadata, metadata_of_level(member_directory.first_metadata)),
        ]
        for name, clock in _clocks().items():
            replaced.append((getattr(time, name), clock))
            patches.set(time, name, clock)
        patches.rebind(replaced)
        for each in COMPARING:
            patches.set(each, "SUPPORTED_LEVEL", LevelOfHost(SUPPORTED_LEVEL))
        patches.set(os, "urandom", urandom)
        patches.set(random, "_urandom", urandom)
        patches.set(os, "getpid", _of_host(os.getpid, lambda host: host.process_id))
        patches.set(Ed25519PrivateKey, "generate", _generated(Ed25519PrivateKey, 32))
        patches.set(X25519PrivateKey, "generate", _generated(X25519PrivateKey, 32))
        patches.set(ec, "generate_private_key", _curve_key)
        patches.set(x509.CertificateBuilder, "sign", _sign)
        patches.set(applying, "APPLIED_AT_ONCE", APPLIED_AT_ONCE)
        patches.set(applying, "YIELD_S", _YieldTime(applying.YIELD_S))
        for module in (trio.to_thread, sys.modules["trio._path"]):
            patches.set(module, "run_sync", in_place)
        patches.set(trio, "open_signal_receiver", _signals(trio.open_signal_receiver))
        patches.set(sys.modules["bridge.node.router.host"], "psutil", _figures())
        for name in (
            "consensus.net.tls",
            "bridge.node.security.certificates",
            "bridge.node.control.control_certificate",
        ):
            patches.set(sys.modules[name], "datetime", _Datetime)
        undo.enter_context(interposed_sockets(sockets, patches.set))
        yield
