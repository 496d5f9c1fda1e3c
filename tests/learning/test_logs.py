"""Logs of events and labels, and what is wrong with others."""

import csv
import gzip
import json

import pytest

from statemix.automaton import IGNORED
from statemix.errors import RequestError
from statemix.learning import read_log

ROWS = [
    {"events": ["open", "read"], "labels": ["ok", None]},
    {"events": ["read all"], "labels": ["no"]},
] * 5


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tabulated(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_rows_of_json_are_traces(tmp_path):
    log = read_log(written(tmp_path / "log.jsonl", ROWS))
    assert (log.events, log.labels, log.num_traces) == (
        ("open", "read", "read_all"),
        ("ok", "no"),
        10,
    )
    assert log.tokens[:3].tolist() == [0, 1, 2]
    assert log.targets[:3].tolist() == [0, IGNORED, 1]
    assert log.starts[:4].tolist() == [0, 2, 3, 5]
    assert log.rows[:4].tolist() == [1, 1, 2, 3]


def test_one_label_is_that_of_the_last_event(tmp_path):
    rows = [{"trace": ["a", "b", "a"], "verdict": n % 2 == 0} for n in range(10)]
    log = read_log(written(tmp_path / "log.ndjson", rows))
    assert log.labels == ("true", "false")
    assert log.targets[:6].tolist() == [IGNORED, IGNORED, 0, IGNORED, IGNORED, 1]


def test_rows_of_csv_are_traces(tmp_path):
    rows = [["a b", "0 1"], ["b", "1"]] * 5
    log = read_log(tabulated(tmp_path / "log.csv", ["Calls", "label"], rows), events="Calls")
    assert (log.events, log.labels) == (("a", "b"), ("0", "1"))
    assert log.targets[:3].tolist() == [0, 1, 1]


def test_the_first_rows_may_lack_labels(tmp_path):
    rows = [{"case": 0, "event": "open"}, {"case": 0, "event": "read", "label": "ok"}]
    rows += [{"case": n, "event": "read", "label": "bad"} for n in range(1, 20)] + rows[:1]
    log = read_log(written(tmp_path / "LOG.JSONL", rows))
    assert log.targets[:2].tolist() == [IGNORED, 0]
    assert read_log(tmp_path / "LOG.JSONL", labels="label").labels == log.labels
    written(tmp_path / "none.jsonl", [{"event": "open"}, {"event": "read", "case": 1}])
    with pytest.raises(RequestError, match="must have a column of labels"):
        read_log(tmp_path / "none.jsonl")
    rows = [{"trace_id": 3 * k, "events": "a", "label": "ok" if k else "bad"} for k in range(20)]
    written(tmp_path / "cases.jsonl", rows)
    with pytest.raises(RequestError, match="column 'trace_id' is read as that of cases"):
        read_log(tmp_path / "cases.jsonl")


def test_rows_with_one_identifier_are_a_trace(tmp_path):
    rows = [[n % 10, f"event {n // 10}", "01"[n % 2] if n // 10 else ""] for n in range(30)]
    log = read_log(tabulated(tmp_path / "log.csv", ["case", "event", "label"], rows))
    assert log.num_traces == 10
    assert log.events == ("event_0", "event_1", "event_2")
    # The second trace: rows 2, 12 and 22.
    assert log.rows[3:6].tolist() == [2, 12, 22]
    assert log.targets[3:6].tolist() == [IGNORED, log.labels.index("1"), log.labels.index("1")]


def test_compressed_logs_are_the_same(tmp_path):
    plain = written(tmp_path / "log.jsonl", ROWS)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_log(packed).tokens.tolist() == read_log(plain).tokens.tolist()


def test_selected_and_shortened_logs(tmp_path):
    log = read_log(written(tmp_path / "log.jsonl", ROWS))
    chosen = log.select([1, 2])
    assert (chosen.starts.tolist(), chosen.tokens.tolist()) == ([0, 1, 3], [2, 0, 1])
    short = log.shortened(1)
    assert (short.num_traces, short.tokens[:3].tolist()) == (10, [0, 2, 0])


CASE = {"case": 1, "event": "a", "label": "ok"}
NAMES = [{"events": [f"id-{n}"], "labels": ["01"[n % 2]]} for n in range(10_000)]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "must have rows, got none"),
        ([{"what": 1}], {}, r"a column of events \(events, event, .*got what; name yours"),
        ([{"events": ["a"]}], {}, "must have a column of labels"),
        (ROWS, {"labels": "label"}, "labels must be a column of .*did you mean 'labels'"),
        (ROWS, {"case": "id"}, "case must be a column of .*got 'id'"),
        ([*ROWS, {"labels": "no"}], {}, "row 11: column 'events' must be in every row"),
        ([*ROWS, {"events": [], "labels": []}], {}, "row 11: column 'events' must hold at least"),
        ([*ROWS, {"events": ["a"] * 3, "labels": ["no", "ok"]}], {}, "row 11: column 'labels' .*2"),
        ([*ROWS, {"events": [["a"]], "labels": "no"}], {}, "row 11: .*'events' must hold text"),
        ([*ROWS, {"events": [""], "labels": "no"}], {}, "row 11: .*'events' must name an event"),
        ([*ROWS, 7], {}, "row 11 must be a JSON object on one line, got '7'"),
        (ROWS[:1], {}, "column 'labels' must have at least two different labels, got only 'ok'"),
        (ROWS[:2], {}, "must have at least 10 traces with labels, got 2; if a row is an event"),
        (ROWS[:9] + [{"events": ["a", "b"], "labels": [None, None]}] * 9, {}, "labels, got 9"),
        ([{"events": ["a"], "label": n} for n in range(10)], {}, "got only single events"),
        ([CASE, {**CASE, "label": 0}, {**CASE, "case": None}], {}, "row 3: .*must name a case"),
        ([*ROWS, {"events": ["\0"], "label": "no"}], {}, "row 11: .*without control"),
        ([*ROWS, {"events": ["\ud800"], "label": "no"}], {}, "row 11: .*without control"),
        ([*ROWS, {"events": ["read_all"], "label": "no"}], {}, "differ from 'read_all' by more"),
        (NAMES, {}, "column 'events' must have at most 1,000 distinct values, got 10,000"),
    ],
)  # fmt: skip
def test_bad_logs_are_named(tmp_path, rows, options, message):
    path = written(tmp_path / "log.jsonl", rows)
    with pytest.raises(RequestError, match=message):
        read_log(path, **options)


def test_capitals_and_blanks_in_names_of_columns_do_not_matter(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "Case ID, Event, Label\n" + "".join(f"{n % 10}, a, {n % 3}\n" for n in range(30))
    )
    log = read_log(path)
    assert (log.num_traces, log.events, log.labels) == (10, ("a",), ("0", "1", "2"))


def test_rows_may_have_different_columns_of_labels(tmp_path):
    rows = [{"events": ["a", "b"], "labels": ["x", "y"]}, {"events": ["a", "b"], "label": "y"}] * 9
    log = read_log(written(tmp_path / "log.jsonl", rows))
    assert log.labels == ("x", "y")
    assert log.targets[:4].tolist() == [0, 1, IGNORED, 1]


def test_a_text_of_several_labels_has_a_word_for_each_event(tmp_path):
    rows = [{"session": n, "events": ["a", "b"], "labels": "x y"} for n in range(10)]
    log = read_log(written(tmp_path / "log.jsonl", rows))
    assert (log.labels, log.targets[:2].tolist(), log.num_traces) == (("x", "y"), [0, 1], 10)


def test_a_trace_of_words_may_have_no_labels(tmp_path):
    rows = [["a b", "x y"]] * 10 + [["b a", ""]]
    log = read_log(tabulated(tmp_path / "log.csv", ["events", "labels"], rows))
    assert log.targets[-2:].tolist() == [IGNORED, IGNORED]


def test_text_beside_a_list_of_events_is_one_label(tmp_path):
    rows = [{"events": ["a", "b"], "label": ["not ok", "ok"][n % 2]} for n in range(10)]
    log = read_log(written(tmp_path / "log.jsonl", rows))
    assert log.labels == ("not_ok", "ok")
    assert log.targets[:4].tolist() == [IGNORED, 0, IGNORED, 1]


def test_numbers_truths_and_missing_labels(tmp_path):
    labels = [1, "1", 1.0, True, 1.5, float("nan"), None]
    log = read_log(written(tmp_path / "log.jsonl", [{"events": ["a"] * 7, "labels": labels}] * 10))
    assert log.labels == ("1", "true", "1.5")
    assert log.targets[:7].tolist() == [0, 0, 0, 1, 2, IGNORED, IGNORED]


def test_blanks_in_identifiers_of_cases_matter(tmp_path):
    rows = [[f"{'a b' if n % 2 else 'a_b'}{n % 10}", "e", n % 3] for n in range(20)]
    rows += [[f"{'a_b' if n % 2 else 'a b'}{n % 10}", "e", n % 3] for n in range(20)]
    log = read_log(tabulated(tmp_path / "log.csv", ["case", "event", "label"], rows))
    assert log.num_traces == 20


def test_cells_without_a_column_are_named(tmp_path):
    rows = [["1", "open", "now", "ok"]]
    path = tabulated(tmp_path / "log.csv", ["case", "event", "label"], rows)
    with pytest.raises(RequestError, match="row 1 must have a cell for each of 3 columns, got 4"):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.jsonl", b"{", "row 1 must be JSON on one line"),
        ("log.jsonl", b"\xff", "must be a readable file"),
        ("log.jsonl.gz", b"{}", "must be a readable file"),
        ("log.jsonl.gz", gzip.compress(b"{}", mtime=0)[:10] + b"\xff" * 20, "a readable file"),
        ("log.csv", b"event;label\n", "must have rows, got none"),
        ("log.csv", b"event;label\na;b\n", "must have a column .*; commas separate columns"),
        ("log.txt", b"{}", "must be a file that ends with .jsonl, .ndjson, .json, .csv or .gz"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_log(path)


def test_folders_and_open_quotes_and_double_columns_are_named(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(RequestError, match=r"folder.csv: not a regular file"):
        read_log(tmp_path / "folder.csv")
    path = tmp_path / "log.csv"
    path.write_text('case,event,label\n1,"open,ok\n1,close,ok\n')
    with pytest.raises(RequestError, match="unexpected end of data"):
        read_log(path)
    path.write_text("\nlabel,event,label\n1,a,2\n")
    with pytest.raises(RequestError, match="must have one column 'label', got several"):
        read_log(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(RequestError, match=r"readable file, got .*none.csv: No such file"):
        read_log(tmp_path / "none.csv")
