"""A refused request body gets the expected form in the reply.

`bridge.api.requests` derives this form from the class of the body.
"""

from typing import Any

from msgspec.structs import fields

from bridge.api.control_routes import QUERY, ROUTES, TRANSFER, Route
from bridge.api.requests import CommandRequest, body_form
from tests.effort import each_case

WITH_BODY = [each for each in ROUTES.values() if each.body is not None]


@each_case("route", WITH_BODY, ids=lambda each: each.path)
def test_expected_form_has_each_key_of_body(route: Route[Any]) -> None:
    assert route.body is not None
    assert [each.encode_name for each in fields(route.body) if f'"{each.encode_name}": ' not in route.expected] == []


def test_expected_form_has_defaults_and_names() -> None:
    assert QUERY.expected == 'expected {"name": NAME, "payload": PAYLOAD, "timeoutMs": 5000}'
    assert TRANSFER.expected == 'expected {"to": TO}, or nothing'


def test_body_form_of_commands_lists_each_alternative() -> None:
    form = body_form(CommandRequest)
    assert form.startswith('one of {"exclusion": {"hash": HASH, "excluded": true}}, {"cost": ')
    assert form.endswith('{"correction": {}}')
