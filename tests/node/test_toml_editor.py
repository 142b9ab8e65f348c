"""Changes of a configuration file keep its comments and order, and are refused if the file has an unusual form."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.node.settings.toml_editor import EditError, add_tables, set_listed_table, set_table
from deploy.example_configuration import text as example_text
from tests.effort import each_case

VALUES = {"kind": "i2cp", "sam": "127.0.0.1:7656"}
LINES = st.lists(
    st.sampled_from(
        [
            *("[router]", "[[leaf]]", "[log]", "[router.x]", '"router".kind = "x"', "router = {}", "# [router]"),
            *('kind = "file"', 'kind = "a # b" # c', '#kind = "file"', "x = [", "1,", "]", '"""', 'y = """', "'''"),
            *("", " [ router ]", "directory = '/srv' # here", 'text = "[router]"', "kind = '''", 'level = "info"'),
        ]
    ),
    max_size=12,
)


def test_values_replace_old_ones_and_keep_comments() -> None:
    text = (
        '# mine\n[router]  # the router\n  kind = "file"   # old # kind\ndirectory = "/srv"\n\n[log]\nlevel = "info"\n'
    )
    made = set_table(text, "router", VALUES, ["directory"])
    assert made == (
        '# mine\n[router]  # the router\n  kind = "i2cp"   # old # kind\nsam = "127.0.0.1:7656"\n#directory = "/srv"\n'
        '\n[log]\nlevel = "info"\n'
    )


def test_value_is_inserted_below_its_commented_line() -> None:
    made = set_table(example_text(), "router", VALUES)
    lines = made.split("\n")
    assert lines[lines.index('kind = "i2cp"') - 1] == '#kind = "file"'
    assert [line for line in lines if line not in {'kind = "i2cp"', 'sam = "127.0.0.1:7656"'}] == example_text().split(
        "\n"
    )


def test_value_is_not_inserted_below_commented_header() -> None:
    lines = set_table(example_text(), "publishing", {"signing_key": "a.key"}).split("\n")
    place = lines.index('signing_key = "a.key"')
    assert lines[place - 1].startswith("#signing_key =")
    assert place < lines.index("#[[master]]")


def test_missing_table_is_added_at_the_end() -> None:
    assert set_table("", "router", {"kind": "i2cp"}) == '[router]\nkind = "i2cp"\n'
    assert set_table('name = "a"\n\n\n', "router", {"kind": "i2cp"}) == 'name = "a"\n\n[router]\nkind = "i2cp"\n'


def test_tables_are_added_after_existing_ones() -> None:
    made = add_tables('[[leaf]]\nprobe = "a:1"\n[log]\n', "leaf", [{"probe": "b:2"}, {"probe": "c:3"}])
    assert tomllib.loads(made) == {"leaf": [{"probe": "a:1"}, {"probe": "b:2"}, {"probe": "c:3"}], "log": {}}
    assert add_tables(made, "leaf", []) == made


def test_listed_table_is_changed_alone() -> None:
    text = '[[leaf]]\nprobe = "a:1"\n[[leaf]]  # the second\nprobe = "b:2" # here\n[log]\n'
    made = set_listed_table(text, "leaf", 1, {"master": "x"}, ["probe"])
    assert made == '[[leaf]]\nprobe = "a:1"\n[[leaf]]  # the second\nmaster = "x"\n#probe = "b:2" # here\n[log]\n'
    with pytest.raises(EditError, match=r"a line \[\[leaf\]\] for each leaf"):
        set_listed_table('leaf = [{probe = "a:1"}]\n', "leaf", 0, {"master": "x"}, ["probe"])


@each_case(
    "text",
    [
        'router = {kind = "file"}\n',
        'router.kind = "file"\n',
        '[ router ]\nkind = "file"\n',
        '[router]\nkind = """\nfile"""\n',
        'x = """\n[router]\nkind = "file"\n"""\n',
        '[router]\n["router".x]\nkind = "file"\n[router.y\n',
    ],
)
def test_unusual_form_is_refused(text: str) -> None:
    with pytest.raises(EditError):
        set_table(text, "router", VALUES)


def test_content_that_is_not_a_list_is_refused() -> None:
    with pytest.raises(EditError):
        add_tables("leaf = 3\n", "leaf", [{"probe": "a:1"}])


@given(LINES, st.dictionaries(st.sampled_from(["kind", "sam", "i2cp"]), st.text(max_size=8), min_size=1))
def test_result_has_exactly_the_wanted_content(lines: list[str], values: dict[str, str]) -> None:
    text = "\n".join(lines)
    try:
        made = set_table(text, "router", values, ["directory"])
    except EditError:
        return
    before: dict[str, Any] = tomllib.loads(text)
    kept = {key: each for key, each in before.get("router", {}).items() if key != "directory"}
    assert tomllib.loads(made) == before | {"router": kept | values}
    lost = [line for line in lines if line and line not in made and f"#{line}" not in made]
    assert all("=" in line for line in lost)
