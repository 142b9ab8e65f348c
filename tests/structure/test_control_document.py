"""docs/reference/control-endpoint.md has every route of the control endpoint with its method, and no other."""

import re

from tests.structure.raft_rules import ROOT

ROUTES = re.compile(r'"(/[\w/-]*)": \("(GET|POST)", (?:self\.|show_page)')


def test_the_table_of_requests_is_the_routes() -> None:
    modules = (ROOT / "bridge" / "node" / "control").glob("*.py")
    served = {(method, path) for module in modules for path, method in ROUTES.findall(module.read_text("utf-8"))}
    text = (ROOT / "docs" / "reference" / "control-endpoint.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(GET|POST) (/[\w/-]*)` \|", text, re.MULTILINE)) == served
    assert len(served) > 20
