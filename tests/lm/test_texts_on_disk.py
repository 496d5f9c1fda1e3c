"""Every text and file that a disk can hold is read, counted as left out, or refused by name."""

import codecs
import gzip
import os
import re
import socket

import pytest

from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.lm.corpora import CorpusReading, read_corpus
from statemix.lm.prepared import read_prepared

TWO_ROWS = b'{"text": "one"}\n\n{"text": "two"}'
HALVES = "read: texts that are not UTF-8 everywhere, with U+FFFD in these places"
# Name and content of a file -> its texts.
READ = {
    ("a.txt", b"a\r\nb\rc\r\n"): ["a\nb\nc\n"],
    ("ä \n'.TXT", b"a"): ["a"],
    (os.fsdecode(b"caf\xe9.txt"), b"a"): ["a"],
    ("mark8.txt", codecs.BOM_UTF8 + "ä".encode()): ["ä"],
    ("latin.txt", b"a\xff\xfeb\xe9"): ["a\ufffd\ufffdb\ufffd"],
    ("nul.txt", b"a\0b"): ["a\0b"],
    ("empty.txt", b""): [],
    ("a.TXT.GZ", gzip.compress(codecs.BOM_UTF8 + b"a")): ["a"],
    ("two.txt.gz", gzip.compress(b"a") + gzip.compress(b"b")): ["ab"],
    ("a.JSONL", codecs.BOM_UTF8 + TWO_ROWS): ["one", "two"],
    ("a.ndjson", TWO_ROWS.replace(b"\n", b"\r\n")): ["one", "two"],
    ("a.jl.gz", gzip.compress(TWO_ROWS)): ["one", "two"],
    ("half.jsonl", b'{"text": "a\\ud83d"}\n{"text": "\\ud83d\\ude00"}'): ["a\ufffd", "😀"],
    ("latin.jsonl", b'{"text": "caf\xe9"}'): ["caf\ufffd"],
    ("empty.jsonl", b'{"text": ""}\n'): [],
    ("repeated.jsonl", b'{"text": "a"}\n{"text": "a"}'): ["a"],
    ("none.jsonl", b""): [],
    ("a.json", b'[{"text": "one"},\n {"text": "two"}]'): ["one", "two"],
    ("a.csv", b'n,text\r\n1,"one, ""1"""\r\n2,' + b"2" * 200_000): ['one, "1"', "2" * 200_000],
    ("A.JSON.gz", gzip.compress(b'\xef\xbb\xbf{"text": "one"}')): ["one"],
}
# Name and content of a file -> the reason for which it is refused.
REFUSED = {
    ("image", b"\x89PNG\r\n\x1a\n\0\0"): r"files with NUL bytes that are not UTF-8: 1 \(",
    ("a.txt.BZ2", b"BZh9"): "must be unpacked, or packed by gzip, to be read",
    ("no.txt.gz", b"a"): "cannot be read: Not a gzipped file",
    ("cut.txt.gz", gzip.compress(b"a" * 99)[:-9]): "cannot be read: Compressed file ended before",
    ("bad.txt.gz", gzip.compress(b"a" * 99)[:10] + b"\xff" * 30): "cannot be read: Error -3",
    ("no.jsonl", b'{"text": "a"}\n{"body": "b"}'): r":2 must have a text in the field 'text', got",
    ("null.jsonl", b'{"text": null}'): r":1 must have a text in the field 'text', got None",
    ("list.jsonl", b'["text"]'): r":1 must have a text in the field",
    ("bad.jsonl", b'{"text": "a"}\n\n{'): r":3 must be JSON",
    ("deep.jsonl", b"[" * 100_000): r":1 must be JSON",
    ("lines.json", TWO_ROWS): "must be JSON: Extra data: .*; JSON Lines need the ending .jsonl",
    ("empty.json", b""): "must be JSON",
    ("no.csv", b"a,b\n1,2"): r":1 must have .* got the fields \['a', 'b'\]; --field names another",
    ("short.csv", b"n,text\n1"): r":1 must have a text in the field 'text', got None",
    ("comma.csv", b"n,text\n1,one, two"): r", row 1 must have .* 2 columns, got 3; quote cells",
    ("twice.csv", b"text,text\n1,2"): "must have one column 'text', got several",
    ("bad.csv", b'text\n"a'): "cannot be read: unexpected end of data",
}


def texts_of(source, **options):
    """Return the texts of a source and what is said of them."""
    reading = CorpusReading()
    texts = [one.text for one in read_corpus([str(source)], reading=reading, **options)]
    assert reading.num_bytes == sum(len(text.encode()) for text in texts)
    return texts, reading


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("case", READ, ids=lambda case: ascii(case[0]))
def test_a_text_is_read(tmp_path, case, inside):
    """By its own name, and in a folder."""
    name, content = case
    path = tmp_path / "deep" / name
    path.parent.mkdir()
    path.write_bytes(content)
    suffixes = [path.suffix.lower()] if inside else []
    found, reading = texts_of(tmp_path if inside else path, suffixes=suffixes)
    assert found == READ[case]
    assert reading.files == 1
    assert any("NUL bytes" in what for what in reading.notes) == (name == "nul.txt")
    assert (HALVES in reading.notes) == ("\ufffd" in "".join(found))
    left_out = [one["count"] for what, one in reading.notes.items() if what.startswith("left out")]
    assert left_out == [1] * (name in {"empty.txt", "empty.jsonl", "repeated.jsonl"})


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: ascii(case[0]))
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, capsys, case):
    name, content = case
    (tmp_path / name).write_bytes(content)
    command = ["lm", "prepare", str(tmp_path / name), "--output", str(tmp_path / "out")]
    assert main([*command, "--tokenizer", "bytes"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(REFUSED[case], said)
    assert name in said
    assert not (tmp_path / "out").exists()


@pytest.fixture
def folder(tmp_path):
    """A folder with everything that is left out, and what each part of it is called."""
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    for place in range(20):
        (folder / f"{place}.txt").write_text(f"text {place}\n")
        (tmp_path / "elsewhere" / "deep" / f"{place}.txt").write_text(f"more {place}\n")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(tmp_path / "elsewhere" / "deep")
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "broken.txt").symlink_to("nowhere")
    (folder / "link.txt").symlink_to(folder / "0.txt")
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.txt"))
    (folder / "empty.txt").touch()
    (folder / "._0.txt").write_bytes(b"\0\xff")
    (folder / "secret.txt").write_text("secret")
    for name in ("rows.jsonl.gz", "a.txt.zst", "b.png", "c.csv", "d.PNG", "plain", "e\n.gif"):
        (folder / name).write_bytes(b"x")
    return folder


def test_a_summary_says_what_is_left_out_and_why(folder, tmp_path, monkeypatch, capsys):
    access = os.access
    # The superuser may read every file.
    monkeypatch.setattr(
        os, "access", lambda path, mode: "secret" not in str(path) and access(path, mode)
    )
    command = ["lm", "prepare", str(folder), "--output", str(tmp_path / "out")]
    assert main([*command, "--tokenizer", "bytes"]) == 0
    printed = capsys.readouterr()
    assert set(printed.err.splitlines()) == {
        "left out: links to folders that are read under another name: 2 (linked/deep, sub/loop)",
        "left out: files that cannot be read: 5 (broken.txt, pipe.txt, secret.txt, ...)",
        "left out: empty texts: 1 (empty.txt)",
        "left out: texts that have come before: 1 (link.txt)",
        "left out: files with NUL bytes that are not UTF-8: 1 (._0.txt)",
        "left out: files with another ending (--suffixes chooses the endings): 7 (a.txt.zst, "
        "b.png, c.csv, ...)",
    }
    assert printed.out.startswith("read: 43 files, 300 bytes of text; 0.125 of the groups are held")
    tokens, held_out, _ = read_prepared(tmp_path / "out")
    assert len(tokens.bounds) + len(held_out.bounds) - 2 == 40
    notes = tokens.info["reading"]["notes"]
    assert notes["left out: empty texts"] == {"count": 1, "first": ["empty.txt"]}


def test_a_folder_that_cannot_be_listed_is_counted(tmp_path, monkeypatch):
    (tmp_path / "secret").mkdir()
    (tmp_path / "a.txt").write_text("a")
    listed = os.scandir

    def refuse(path):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found, reading = texts_of(tmp_path)
    assert found == ["a"]
    assert reading.sentences() == [
        f"left out: folders that cannot be read: 1 ({tmp_path / 'secret'})"
    ]


def test_sources_that_are_no_regular_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match=r"pipe is not a regular file, which can be read twice"):
        texts_of(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RequestError, match=r"source must be .* or an existing path, got .*loop"):
        texts_of(tmp_path / "loop")


def test_names_that_are_not_utf_8_are_prepared_and_printed(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for place in range(20):
        (folder / os.fsdecode(b"\xe9%d.txt" % place)).write_text(f"text {place}\n")
    (folder / os.fsdecode(b"\xe9.txt")).touch()
    assert main(["lm", "prepare", str(folder), "--output", str(folder / "out")]) == 0
    assert "left out: empty texts: 1 ('\\udce9.txt')" in capsys.readouterr().err
    assert read_prepared(folder / "out")[0].info["source"] == [str(folder)]


def test_text_files_without_an_ending_are_read_by_name_alone(tmp_path):
    (tmp_path / "plain").write_text("a")
    assert texts_of(tmp_path / "plain")[0] == ["a"]
    assert texts_of(tmp_path)[0] == []
