"""Tables as text and as HTML."""

from statemix_lab.studies.result_text import Line, Table

TABLE = Table(
    ("model", "s3"),
    (Line(("LSTM", ".500 =")), Line(("  paper", ".50"), quiet=True), Line(("a<b", "– ?"))),
)


def test_columns_are_aligned():
    assert TABLE.as_text().splitlines() == [
        "model    s3",
        "LSTM     .500 =",
        "  paper  .50",
        "a<b      – ?",
    ]


def test_a_page_shows_verdicts_as_classes_and_escapes_text():
    html = TABLE.as_html()
    assert '<td class="agrees">.500 =</td>' in html
    assert '<tr class="quiet"><th scope="row">  paper</th>' in html
    assert '<th scope="row">a&lt;b</th><td class="partial">' in html
