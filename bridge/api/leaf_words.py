"""Why a leaf is not healthy, in words, and what to do about it: for each surface that shows a leaf.

A leaf is healthy while three conditions hold (`bridge.core.log.records.LeafFault`). A report names those that do not;
the report of an older version names none. A leaf whose server is down or has not reported lately is unhealthy without a
fault of its own.
"""

from collections.abc import Iterable, Mapping

from msgspec import UnsetType

from bridge.core.log.records import LeafFault

FAULT_WORDS: Mapping[str, str] = {
    LeafFault.ROUTER.value: "no router answers",
    LeafFault.LEASE_SET.value: "its lease set is not found",
    LeafFault.SERVICE.value: "its service does not answer the probe",
}
_ACTIONS: Mapping[str, str] = {
    LeafFault.ROUTER.value: "start the router of that node and its I2CP port; `garlicfarm doctor` there checks both",
    LeafFault.LEASE_SET.value: (
        "look in the router's console whether the leaf's server tunnel runs and the router has found peers"
    ),
    LeafFault.SERVICE.value: "start the service behind the leaf, or correct `probe` in its [[leaf]]",
}


def health_text(faults: Iterable[str] | UnsetType, *, healthy: bool) -> str:
    """`healthy`, `unhealthy` or `unhealthy: its lease set is not found`."""
    if healthy:
        return "healthy"
    found = faults_text(faults)
    return f"unhealthy: {found}" if found else "unhealthy"


def faults_text(faults: Iterable[str] | UnsetType) -> str:
    """The conditions that do not hold, in their fixed order; empty if none is known."""
    return " and ".join(_in_order(FAULT_WORDS, faults))


def fault_actions(faults: Iterable[str]) -> str:
    """The remedy of each fault."""
    return "; ".join(_in_order(_ACTIONS, faults))


def _in_order(texts: Mapping[str, str], faults: Iterable[str] | UnsetType) -> list[str]:
    found = set[str]() if isinstance(faults, UnsetType) else set(faults)
    return [text for fault, text in texts.items() if fault in found]
