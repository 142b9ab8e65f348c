"""Several masters on one node: their settings, their reports and their publications."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import MetaStatus, Publication, PublishConfig, Report
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.router import FileRouter, ServedLeaf
from bridge.node.security.key_files import save_signing_key
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.masters import MasterError, MasterSettings, load_masters
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import decode as decode_structure
from tests.destinations import new_demo_leaf
from tests.effort import each_case
from tests.node.farm_stage import LEAF, MASTER, NOW_S, OWN, Stage
from tests.node.test_configuration import load, problems

BLOG, SHOP = new_master_key(demo=True), new_master_key(demo=True)
OTHER_LEAF, COMMON_LEAF = new_demo_leaf(), new_demo_leaf()


def configured(tmp_path: Path, text: str) -> NodeConfiguration:
    return load(tmp_path, f'farm_key = "/farm.key"\n{text}')


# -- settings ---------------------------------------------------------------------------------------------------------


def test_masters_have_tables_and_leaves_name_them(tmp_path: Path) -> None:
    configuration = configured(
        tmp_path,
        f"""
        [[master]]
        signing_key = "blog.key"
        publish = "on"
        [[master]]
        destination = "{SHOP.destination.base64}"
        [[leaf]]
        destination = "{LEAF.base64}"
        master = "{SHOP.destination.address}"
        [[leaf]]
        destination = "{OTHER_LEAF.base64}"
        """,
    )
    assert configuration.masters == (
        MasterSettings(publish=PublishConfig.ON, signing_key=tmp_path / "blog.key"),
        MasterSettings(destination=SHOP.destination),
    )
    assert [leaf.master_hash for leaf in configuration.leaves] == [SHOP.destination.hash, None]


@each_case(
    ("text", "fault"),
    [
        ("[[master]]", "master[0].signing_key: give the key file of this master"),
        ("[[master]]\nsigning_key='k'\ndestination='d'", "master[0].signing_key: give the key file of this master"),
        ("[[master]]\ndestination='d'", "master[0].destination: not I2P base64"),
        ("[[master]]\nsigning_key='k'\npublish='maybe'", "master[0].publish: 'maybe' is not one of"),
        ("[[master]]\nsigning_key='k'\nname='x'", "master[0].name: no such setting"),
        (f"[[master]]\ndestination='{SHOP.destination.base64}'\npublish='on'", 'publish: "on" needs a signing_key'),
        ("[publishing]\nsigning_key='k'\n[[master]]\nsigning_key='l'", "publishing.signing_key: belongs in each"),
        ("[publishing]\npublish='off'\n[[master]]\nsigning_key='l'", "publishing.publish: belongs in each"),
        (f"[[leaf]]\ndestination='{LEAF.base64}'\nmaster='blog'", "leaf[0].master: 'blog' is not the address"),
        ("\n".join(["[[master]]\nsigning_key='k'"] * 9), "not a list of at most 8 tables"),
    ],
)
def test_invalid_master_setting_is_named_with_place(tmp_path: Path, text: str, fault: str) -> None:
    assert any(fault in problem for problem in problems(tmp_path, f'farm_key = "/farm.key"\n{text}'))


def key_file(tmp_path: Path, name: str, key: object = BLOG) -> Path:
    path = tmp_path / name
    save_signing_key(path, (BLOG if key is BLOG else SHOP).sign_transient(NOW_S))
    return path


def test_masters_with_and_without_key_are_served(tmp_path: Path) -> None:
    settings = (
        MasterSettings(publish=PublishConfig.OFF, signing_key=key_file(tmp_path, "blog.key")),
        MasterSettings(destination=SHOP.destination),
    )
    masters = load_masters(settings, (ServedLeaf(LEAF, master_hash=SHOP.destination.hash), ServedLeaf(OTHER_LEAF)))
    assert [(held.master, held.publish) for held in masters.keys] == [(BLOG.destination.base64, PublishConfig.OFF)]
    assert [(each.destination, each.can_sign_until_s) for each in masters.keyless] == [(SHOP.destination.base64, None)]


def test_foreign_leaf_or_duplicate_master_is_refused(tmp_path: Path) -> None:
    blog = MasterSettings(signing_key=key_file(tmp_path, "blog.key"))
    with pytest.raises(MasterError, match=SHOP.destination.address):
        load_masters((blog,), (ServedLeaf(LEAF, master_hash=SHOP.destination.hash),))
    with pytest.raises(MasterError, match="two"):
        load_masters((blog, MasterSettings(destination=BLOG.destination)), ())


async def test_file_router_returns_leaves_of_each_master(tmp_path: Path) -> None:
    leaves = (
        ServedLeaf(LEAF, master_hash=BLOG.destination.hash),
        ServedLeaf(OTHER_LEAF, master_hash=SHOP.destination.hash),
    )
    router = FileRouter(tmp_path, (*leaves, ServedLeaf(COMMON_LEAF)), HostSampler(), LoopLag(), demo=True)
    assert await router.local_leaf_hashes(BLOG.destination.hash) == (LEAF.hash, COMMON_LEAF.hash)
    assert await router.local_leaf_hashes(SHOP.destination.hash) == (OTHER_LEAF.hash, COMMON_LEAF.hash)


# -- reports and publications ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("machine_clock")
async def test_node_reports_and_publishes_each_master(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    unsigned = MetaStatus(BLOG.destination.base64, PublishConfig.AUTO, publishing=False, last_published_time_ms=0)
    stage = Stage(more_keys=(PublishingKey(SHOP.sign_transient(NOW_S)),), keyless=(unsigned,))
    stage.router.behind = {
        MASTER.destination.hash: (LEAF, COMMON_LEAF),
        SHOP.destination.hash: (OTHER_LEAF, COMMON_LEAF),
        BLOG.destination.hash: (COMMON_LEAF,),
    }
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(20)
    reports = [record for _, record in stage.records(Report) if isinstance(record, Report)]
    assert [part.destination for part in reports[-1].masters] == [
        MASTER.destination.base64,
        SHOP.destination.base64,
        BLOG.destination.base64,
    ]
    assert [part.publishing for part in reports[-1].masters] == [True, True, False]
    assert {leaf.destination: leaf.master_hash for leaf in reports[-1].destinations} == {
        LEAF.base64: hash_of(MASTER.destination.base64),
        OTHER_LEAF.base64: hash_of(SHOP.destination.base64),
        COMMON_LEAF.base64: None,
    }
    listed = {
        structure.destination.hash: {lease.destination_hash for lease in structure.leases}
        for structure in map(decode_structure, stage.router.published)
    }
    assert listed == {
        MASTER.destination.hash: {LEAF.hash, COMMON_LEAF.hash},
        SHOP.destination.hash: {OTHER_LEAF.hash, COMMON_LEAF.hash},
    }
    publications = [record for _, record in stage.records(Publication) if isinstance(record, Publication)]
    assert {record.server_id for record in publications} == {OWN}
