import pytest
from hypothesis import given
from hypothesis import strategies as st
from render_graphs import render_domains

from kgverify import UserError
from kgverify.graphs.domains import parse_domains

NAMES = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1)


def test_a_line_begins_with_its_domain() -> None:
    text = "% who\npeople 1 2  3 \nregions europe asia\n"
    assert parse_domains(text, "domains.txt") == {"people": ("1", "2", "3"), "regions": ("europe", "asia")}


def test_in_a_line_with_tabs_names_keep_their_spaces() -> None:
    assert parse_domains("big cities\tNew York\tRio\n", "domains.txt") == {"big cities": ("New York", "Rio")}


def test_a_domain_may_be_continued_without_repetitions() -> None:
    assert parse_domains("d a b\ne c\nd b f\n", "domains.txt") == {"d": ("a", "b", "f"), "e": ("c",)}


def test_a_domain_without_constants_is_an_error_with_a_fix() -> None:
    with pytest.raises(UserError) as caught:
        parse_domains("d a\nempty\n", "domains.txt")
    error = caught.value
    assert error.where == "domains.txt:2"
    assert error.message == "expected domain constant constant ..., found the domain 'empty' without constants"
    assert error.fix == "list the domain's constants after its name, on the same line"


def test_a_line_that_begins_with_a_tab_names_no_domain() -> None:
    with pytest.raises(UserError, match="found no domain name"):
        parse_domains("\ta\tb\n", "domains.txt")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("countries: ann bob", "'countries:'"),
        ("countries ann, bob", "'ann,'"),
        ("countries 'New York'", '"\'New"'),
        ("country(ann). country(bob).", "'country(ann).'"),
        ("countries = ann", "'='"),
        ("countries ann % two", "'%'"),
        ("/* countries */ ann", "'/*'"),
        ('{"countries": ["ann"]}', "'{\"countries\":'"),
    ],
)
def test_a_line_in_another_format_is_an_error_with_a_fix(line: str, found: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_domains(f"d ann\n{line}\n", "domains.txt", constants=frozenset({"ann", "bob"}))
    error = caught.value
    assert (error.where, error.message) == ("domains.txt:2", f"expected domain constant constant ..., found {found}")
    assert error.fix == "separate the names by blanks alone, or by tabs; write comments on lines of their own"


def test_punctuation_may_belong_to_a_constant_of_the_graph() -> None:
    assert parse_domains("d ann, St. Inc.\n", "domains.txt", constants=frozenset({"ann", "ann,"})) == {
        "d": ("ann,", "St.", "Inc.")
    }


@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, unique=True).map(tuple)))
def test_domains_with_arbitrary_names_survive(domains: dict[str, tuple[str, ...]]) -> None:
    assert parse_domains(render_domains(domains), "domains.txt") == domains
