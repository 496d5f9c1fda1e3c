"""The stream of stories: every scored answer is the file's, and files that do not fit are named."""

import os
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.errors import RequestError
from statemix.tasks import IGNORED, TaskSpec
from statemix.training import RunConfig
from statemix_lab.tasks.babi import stories
from statemix_lab.tasks.babi.catbabi import CatBabi

STORY = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel? \thallway\t4
1 The office is north of the kitchen.
2 The garden is west of the kitchen.
3 How do you go from the garden to the office?\te,n\t2 1
"""
TOKENS = [
    "<story> mary moved to the bathroom . john went to the hallway . where is mary ? bathroom "
    "daniel went back to the hallway . where is daniel ? hallway",
    "<story> the office is north of the kitchen . the garden is west of the kitchen . "
    "how do you go from the garden to the office ? e,n",
]

SIZE = sum(len(story.split()) for story in TOKENS)


@pytest.fixture
def folder(tmp_path):
    """A folder with the file of one bAbI task for each split."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"qa1_{split}.txt").write_text(STORY)
    return tmp_path


def numbered(count, first=0):
    """Stories that differ, of eight tokens each, with one question."""
    return "".join(
        f"1 Box {number} holds.\n2 What?\tball{number}\t1\n"
        for number in range(first, first + count)
    )


def text(task, tokens):
    return " ".join(task.words[token] for token in tokens)


def answers(task, examples):
    """The scored answers in order."""
    labels = examples.targets["answer"].ravel()
    return [task.words[label] for label in labels[labels != IGNORED]]


def test_a_story_becomes_these_tokens(folder):
    task = CatBabi(folder=str(folder), length=SIZE)
    for split in ("train", "validation", "test"):
        tokens, targets, lengths = task.examples(split, 0, 1)
        assert lengths is None
        found = text(task, tokens[0])
        assert found in (" ".join(TOKENS), " ".join(reversed(TOKENS)))
        asked = targets["answer"][0] != IGNORED
        assert text(task, tokens[0, asked]) == "? ? ?"
        np.testing.assert_array_equal(
            targets["answer"][0, :-1][asked[:-1]], tokens[0, 1:][asked[:-1]]
        )
    assert task.words == ("<story>", *sorted(set(" ".join(TOKENS).split()) - {"<story>"}))
    assert task.heads == {"answer": task.vocab_size}
    assert task.title == "catbAbI"
    # Of the training answers, each is one of three.
    assert task.chance == {"answer": 1 / 3}
    first, *lines = task.describe(0, "test").splitlines()
    assert first == f"test sequence 0 of catbAbI, {SIZE} tokens"
    assert "to the office ? [e,n] e,n" in " ".join(line.strip() for line in lines)
    assert max(map(len, lines)) <= 80


WORDS = st.text("abcxyz", min_size=1, max_size=4)
STATEMENTS = st.lists(WORDS, min_size=1, max_size=5).map(lambda words: " ".join(words) + ".")
QUESTIONS = st.tuples(STATEMENTS, st.lists(WORDS, min_size=1, max_size=3).map(",".join))
TALES = st.lists(st.one_of(STATEMENTS, QUESTIONS), min_size=1, max_size=6)


@given(
    tales=st.lists(TALES, min_size=1, max_size=8).filter(
        lambda tales: any(isinstance(line, tuple) for tale in tales for line in tale)
    ),
    length=st.integers(1, 50),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_story_comes_once_a_pass_and_every_answer_is_the_files(
    tmp_path_factory, tales, length, seed
):
    folder = tmp_path_factory.mktemp("babi")
    lines, wanted = [], []
    for tale in tales:
        story = ["<story>"]
        for number, line in enumerate(tale, 1):
            if isinstance(line, tuple):
                question, answer = line[0].replace(".", "?"), line[1]
                lines.append(f"{number} {question.upper()}\t{answer.upper()}\t1")
                story += [*question.replace("?", " ?").split(), f"[{answer}]", answer]
            else:
                lines.append(f"{number} {line.upper()}")
                story += line.replace(".", " .").split()
        wanted.append(" ".join(story))
    (folder / "qa1_train.txt").write_text("\n".join(lines) + "\n")
    (folder / "qa2_train.txt").write_text("1 Box.\n2 What?\tball\t1\n")
    for name in ("qa1_valid", "qa1_test", "qa2_valid", "qa2_test"):
        (folder / f"{name}.txt").write_text(STORY)
    wanted.append("<story> box . what ? [ball] ball")
    size = sum(len(story.split()) - story.count("[") for story in wanted)
    # Of one token each, some examples begin where a pass begins.
    one = CatBabi(folder=str(folder), length=1, seed=seed)
    for lap in range(3):
        tokens, targets, _ = one.examples("train", lap * size, (lap + 1) * size)
        labels = targets["answer"][:, 0]
        shown = [
            one.words[token] if label == IGNORED else f"{one.words[token]} [{one.words[label]}]"
            for token, label in zip(tokens[:, 0], labels, strict=True)
        ]
        found = [f"<story> {story}".strip() for story in " ".join(shown).split("<story> ")[1:]]
        assert sorted(found) == sorted(wanted)
    # Any other length cuts the same stream.
    whole = one.examples("train", 0, 12 * length)
    cut = CatBabi(folder=str(folder), length=length, seed=seed).examples("train", 5, 12)
    np.testing.assert_array_equal(cut.tokens.ravel(), whole.tokens[5 * length :, 0])
    np.testing.assert_array_equal(
        cut.targets["answer"].ravel(), whole.targets["answer"][5 * length :, 0]
    )


def test_passes_splits_and_seeds_have_orders_of_their_own(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"qa3_yes-no_{split}.txt").write_text(numbered(60))
    orders = []
    for seed in (0, 1):
        task = CatBabi(folder=str(tmp_path), length=60 * 8, seed=seed)
        passes = [("train", 0), ("train", 1), ("validation", 0), ("test", 0)]
        orders += [answers(task, task.examples(split, lap, lap + 1)) for split, lap in passes]
    assert all(sorted(order) == sorted(f"ball{n}" for n in range(60)) for order in orders)
    for place, order in enumerate(orders):
        same = [np.mean(np.array(order) == other) for other in orders[:place]]
        assert max(same, default=0) < 0.2


@pytest.mark.parametrize("given_files", [(), ("valid",)])
def test_every_tenth_training_story_stands_in_for_a_missing_file(tmp_path, given_files):
    (tmp_path / "qa5_a_b_train.txt").write_text(numbered(40))
    for split in given_files:
        (tmp_path / f"qa5_a_b_{split}.txt").write_text(numbered(11, first=100))
    # Another bAbI task with all its files is not touched.
    for split, first in (("train", 200), ("valid", 300), ("test", 400)):
        (tmp_path / f"qa6_{split}.txt").write_text(numbered(12, first=first))
    task = CatBabi(folder=str(tmp_path), length=8)
    corpus = stories.corpus(str(tmp_path))
    found = {
        split: sorted(int(task.words[token].removeprefix("ball")) for token in one.answers)
        for split, one in corpus.splits.items()
    }
    held = {"validation": [9, 19, 29, 39], "test": [8, 18, 28, 38]}
    for split in given_files:
        held[{"valid": "validation"}.get(split, split)] = [*range(100, 111)]
    assert found["validation"] == [*held["validation"], *range(300, 312)]
    assert found["test"] == [*held["test"], *range(400, 412)]
    kept = sorted(set(range(40)) - {*held["validation"], *held["test"]})
    assert found["train"] == [*kept, *range(200, 212)]


def test_files_are_read_once_and_again_after_a_change(folder, monkeypatch):
    reads = []
    read = stories.read
    monkeypatch.setattr(stories, "read", lambda place: reads.append(place) or read(place))
    monkeypatch.chdir(folder.parent)
    for path in (str(folder), f"{folder}/", folder.name):
        assert "box" not in CatBabi(folder=path).words
    assert len(reads) == 1
    path = folder / "qa1_test.txt"
    path.write_text(numbered(2))
    assert "box" in CatBabi(folder=str(folder)).words
    # Also after a change that leaves the size.
    before = path.stat()
    path.write_text(numbered(2).replace("Box", "Bag"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**10))
    assert "bag" in CatBabi(folder=str(folder)).words
    assert len(reads) == 3


def test_an_archive_is_read_like_its_folder(folder, tmp_path):
    archive = tmp_path / "tasks.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, "tasks_1-20/en-valid")
    folder_task = CatBabi(folder=str(folder), length=11)
    for path in (archive, archive / "en-valid", archive / "tasks_1-20" / "en-valid"):
        task = CatBabi(folder=str(path), length=11)
        assert task.words == folder_task.words
        np.testing.assert_array_equal(
            task.examples("train", 0, 9).tokens, folder_task.examples("train", 0, 9).tokens
        )
    (folder / "other.txt").write_text(numbered(3))
    with tarfile.open(archive, "w:gz") as packed:
        for name, file in (("en", "other"), ("en-10k", "qa1_train"), ("hn-10k", "other")):
            packed.add(folder / f"{file}.txt", f"./tasks_1-20/{name}/qa1_train.txt")
    assert CatBabi(folder=f"{archive}/en-10k").words == folder_task.words
    assert "ball2" in CatBabi(folder=f"{archive}/tasks_1-20/en").words
    for inside in ("", "/hn", "/tasks_1-20"):
        message = (
            r"^folder must name one folder of the archive \(tasks_1-20/en, tasks_1-20/en-10k, .*\)"
        )
        with pytest.raises(ValueError, match=message):
            CatBabi(folder=f"{archive}{inside}")


@pytest.mark.parametrize(("kind", "options"), [("gz", {"compresslevel": 0}), ("xz", {"preset": 0})])
def test_a_damaged_archive_is_named(tmp_path, kind, options):
    """The damage lies beyond what opening the archive reads."""
    path, archive = tmp_path / "qa1_train.txt", tmp_path / f"tasks.tar.{kind}"
    path.write_bytes(np.random.default_rng(0).bytes(600_000))
    with tarfile.open(archive, f"w:{kind}", **options) as packed:
        packed.add(path, path.name)
    whole = archive.read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half] + bytes(half), whole[:half], b"", STORY.encode()):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"^folder must be .* a complete .tar.gz archive, got"):
            CatBabi(folder=str(archive))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "got an empty qa1_train.txt"),
        ("1 Mary left.\n", "got qa1_train.txt without a question"),
        (f"{STORY}\n", "line 9 of qa1_train.txt must be 'ID text' or 'ID question.*', got ''"),
        ("Mary left.\n", "line 1 of qa1_train.txt must be 'ID text' .*, got 'Mary left.'"),
        ("1 Where?\tattic\n", "line 1 of .* must be .*'ID question.*answer.*', got '1 Where.*"),
        ("1 Where? \tthe attic\t1\n", "line 1 of .* must be"),
        ("1 Where. \tattic\t1\n", "line 1 of .* must be"),
        ("2 Mary left.\n", "line 1 of .* must have ID 1, which begins a story, got '2 Mary left.'"),
        ("1 A.\n2 B.\n2 C.\n", "line 3 of .* must have ID 1 or an ID above 2, got '2 C.'"),
        (b"1 Caf\xe9.\n", "text files in UTF-8, got byte 5 of qa1_train.txt"),
    ],
)
def test_files_that_do_not_fit_are_named_with_the_line(folder, content, message):
    path = folder / "qa1_train.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as raised:
        CatBabi(folder=str(folder))
    assert str(raised.value).startswith("folder must hold")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "^folder must be an existing folder or archive of bAbI's files, got '.*absent'"),
        ("empty", "^folder must hold bAbI's files .*_train.txt.*, got none in '.*empty'"),
    ],
)
def test_folders_without_stories_are_named(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "qa1_train.txt.bak").write_text(STORY)
    with pytest.raises(ValueError, match=message):
        CatBabi(folder=str(tmp_path / name))


def test_missing_and_repeated_files_are_named(folder):
    (folder / "qa1_facts_test.txt").write_text(STORY)
    message = "one file for each task and split, got qa1_facts_test.txt and qa1_test.txt"
    with pytest.raises(ValueError, match=message):
        CatBabi(folder=str(folder))
    (folder / "qa1_facts_test.txt").rename(folder / "qa2_test.txt")
    with pytest.raises(ValueError, match=r"^folder must hold qa2_..._train.txt, got only qa2_test"):
        CatBabi(folder=str(folder))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("train", 0, 4), "stop must be at most train_size=3, got 4"),
        (("test", 0, 6), r"stop must be at most 5 \(sequences of 10 tokens .*, got 6"),
    ],
)
def test_bad_requests_are_named(folder, request_, message):
    task = CatBabi(folder=str(folder), length=10, train_size=3)
    with pytest.raises(ValueError, match=message):
        task.examples(*request_)


def test_a_configuration_stores_the_path_as_given_and_refuses_in_one_line(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    config = RunConfig(task=TaskSpec("catbabi", folder=folder.name))
    assert config.build_task().folder == folder.name
    assert config.completed().task.to_plain() == {
        "name": "catbabi",
        "folder": folder.name,
        "sha256": config.build_task().sha256,
        "length": 200,
        "train_size": None,
    }
    story = (folder / "qa1_train.txt").read_text()
    (folder / "qa1_train.txt").write_text(story.replace("Mary", "Zoe"))
    with pytest.raises(RequestError, match="folder must have stories with sha256="):
        config.build_task()
    (folder / "qa1_train.txt").write_text("Mary left.\n")
    with pytest.raises(RequestError, match="task: folder must hold bAbI's files: line 1 of qa1_tr"):
        config.build_task()
