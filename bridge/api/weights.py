"""The part of the picture that shows why leaves cost what they cost: loads, exclusions and factors, by address."""

from collections.abc import Callable, Mapping

from bridge.api.view import CostFactorView, ExclusionView, LeafView, PipelineFactorView, WeightsView
from bridge.core.log.hashes import hash_of
from bridge.core.log.weights import THOUSANDTHS
from bridge.core.publishing.lease_set import leaf_load
from bridge.core.state.farm_state import FarmState, ServerState


def weights_view(state: FarmState, log_time_ms: int, names: Mapping[int | None, str]) -> WeightsView:
    """What operators and the pipeline said, as it counts at this log time."""
    weights = state.weights
    owners = {
        hash_of(leaf.destination): names.get(server_id, f"server {server_id}")
        for server_id, server in sorted(state.servers.items())
        for leaf in server.report.destinations
    }
    return WeightsView(
        excluded=tuple(ExclusionView(address_of_hash(each), owners.get(each)) for each in weights.excluded),
        costs=tuple(
            CostFactorView(address_of_hash(each), owners.get(each), thousandths / THOUSANDTHS)
            for each, thousandths in sorted(weights.costs.items())
        ),
        factors=tuple(
            PipelineFactorView(
                address_of_hash(each),
                owners.get(each),
                factor=factor.at(log_time_ms) / THOUSANDTHS,
                said=factor.thousandths / THOUSANDTHS,
                age_ms=max(0, log_time_ms - factor.said_ms),
            )
            for each, factor in sorted(weights.factors.items())
        ),
        through_index=weights.through_index,
        formula=weights.formula,
    )


def leaf_views(state: FarmState, server: ServerState, address_of: Callable[[str], str]) -> tuple[LeafView, ...]:
    """The leaves of one server's latest report."""
    return tuple(
        LeafView(
            destination=address_of(leaf.destination),
            master=None if leaf.master_hash is None else address_of_hash(leaf.master_hash),
            healthy=leaf.healthy,
            load=leaf_load(server.report.router, leaf),
            excluded=hash_of(leaf.destination) in state.weights.excluded,
        )
        for leaf in server.report.destinations
    )


def address_of_hash(destination_hash: str) -> str:
    """The address of what has this hash in base32."""
    return f"{destination_hash}.b32.i2p"
