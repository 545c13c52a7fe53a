"""What is shown as Markdown: nothing that a job holds is taken as markup."""

import pytest

from dagster_sqlqueue.orchestration.markdown import INLINE, cell, fenced, first_of, most_inline, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 7 %", "plain text, 7 %"),
        ("a | b", r"a \| b"),
        ("**bold** `code` <b>", r"\*\*bold\*\* \`code\` \<b\>"),
        ("![x](http://a.example/b.png)", r"\!\[x\](http://a.example/b.png)"),
        ("back\\slash &lt;", r"back\\slash \&lt;"),
        ("first\nsecond", "first …"),
        ("\n  first\n", "first"),
        ("a\tb\x1b[31m\u202e", r"a\\tb\\x1b\[31m\\u202e"),
        ("", ""),
        (None, "None"),
        (7, "7"),
    ],
)
def test_a_cell_is_text_on_one_line(text: object, shown: str) -> None:
    assert cell(text) == shown


def test_long_cells_are_cut() -> None:
    assert cell("x" * 80) == "x" * 80
    assert cell("x" * 81) == "x" * 78 + " …"
    assert table(["a", "b"], [["x" * 90, "y" * 90]], wide=90).splitlines() == [
        "| a | b |",
        "| --- | --- |",
        f"| {'x' * 78} … | {'y' * 90} |",
    ]


def test_a_fence_is_longer_than_any_within() -> None:
    assert fenced("a") == "```\na\n```"
    assert fenced("x ``` y", "json") == "````json\nx ``` y\n````"
    assert fenced("\na\x1b[2J\n\tb\n") == "```\na\\x1b[2J\n\tb\n```"
    cut = fenced("a" * 60 + "z" * 60, limit=100)
    assert cut == f"```\n{'a' * 50}\n… 20 characters are left out …\n{'z' * 50}\n```"


def test_a_table_says_when_it_shows_the_first() -> None:
    assert first_of(50, "jobs") == ""
    assert first_of(1_234, "jobs") == "\n\nThe first 50 of 1,234 jobs."


def test_as_many_rows_as_the_page_shows_without_a_click() -> None:
    assert most_inline(9, lambda rows: "x" * 100 * rows) == "x" * 900
    assert most_inline(12, lambda rows: "x" * 100 * rows) == "x" * 900
    assert most_inline(12, lambda rows: "x" * 111 * rows) == "x" * INLINE
    assert most_inline(2, lambda rows: "x" * 1_200 * rows) == "x" * 1_200
