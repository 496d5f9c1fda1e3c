"""Every code block of the documents runs, and every link target exists."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from statemix.cli import main
from statemix.cli.commands import GROUP, parse
from statemix.layers import LAYERS
from statemix.proofs import parse_property
from statemix.registry import Registry
from statemix.tasks import TASKS
from statemix.tasks.automata.automaton_text import parse_automaton
from statemix.training import RunConfig, config_from_plain
from statemix.training.config import SCHEMA

ROOT = Path(__file__).parents[1]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "generated"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(language):
    return [
        pytest.param(code, id=f"{path.name}-{number}")
        for path in DOCUMENTS
        for number, (kind, code) in enumerate(BLOCK.findall(path.read_text()))
        if kind == language
    ]


def test_every_block_has_a_language_that_is_tested():
    kinds = {kind for path in DOCUMENTS for kind, _ in BLOCK.findall(path.read_text())}
    assert kinds <= {"python", "c", "console", "text", "toml"}


@pytest.fixture
def names_restored():
    """Remove the layers and tasks that a block registers."""
    before = {id(registry): set(registry) for registry in (LAYERS, TASKS)}
    yield
    for registry in (LAYERS, TASKS):
        for name in set(registry) - before[id(registry)]:
            registry.remove(name)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path, monkeypatch, names_restored):
    """As pasted: a block defines all that it uses, and writes into the working directory."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "block", "exec"), {})


@pytest.mark.parametrize("code", blocks("c"))
def test_c_blocks_run(code, tmp_path):
    """As the body of a program, after its first lines, with the files that they include."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    for group, name in (("S_3", "s3"), ("S_6", "s6")):
        source = ROOT / "laboratory" / "results" / "certificates" / f"{group}.json"
        shutil.copy(source, tmp_path / "certificate.json")
        assert main.main(["compile", str(tmp_path), "--name", name]) == 0
    head, _, body = code.partition("\n\n")
    program = tmp_path / "program.c"
    program.write_text(f"{head}\nint main(void) {{\n{body}return 0;\n}}\n")
    command = [compiler, "-std=c99", "-Wall", "-o", str(tmp_path / "program"), str(program)]
    subprocess.run(command, check=True)
    subprocess.run([str(tmp_path / "program")], check=True)


@pytest.mark.parametrize("code", blocks("toml"))
def test_configuration_files_are_right(code):
    content = tomllib.loads(code)
    if "project" in content:
        groups = {GROUP, "statemix.studies", *(f"statemix.{kind}s" for kind in Registry.by_kind)}
        assert content["project"]["entry-points"].keys() <= groups
        return
    assert config_from_plain(content).resolved().asked()["model"]["layers"]


@pytest.mark.parametrize("code", blocks("console"))
def test_commands_exist(code, tmp_path, monkeypatch, capsys):
    """Statemix commands run; make targets are only resolved, and installs are skipped."""
    monkeypatch.chdir(tmp_path)
    for line in code.splitlines():
        program, *arguments = shlex.split(line)
        if program == "statemix":
            assert main.main(arguments) == 0
            printed = capsys.readouterr().out
        elif program == "make":
            command = ["make", "--dry-run", "--directory", str(ROOT), *arguments]
            printed = subprocess.check_output(command, text=True, timeout=120)
        else:
            assert program == "pip"
            continue
        assert printed, f"{line} must print something"


def automata():
    """The automaton and the properties on the page about them."""
    texts = BLOCK.findall((ROOT / "docs" / "automata.md").read_text())
    return [text for _, text in texts if text.startswith("start:")]


def traces():
    """The traces on the page about automata."""
    texts = BLOCK.findall((ROOT / "docs" / "automata.md").read_text())
    (found,) = [text for _, text in texts if text.startswith("open/")]
    return found


def test_traces_on_the_page_can_be_read(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(5 * traces())
    task = TASKS.build("traces", file=str(path))
    assert task.letters == ("open", "read", "close")
    watched = parse_property(automata()[1], task.letters, task.classes)
    closed = watched.transitions[0, 2, 0]
    assert watched.bad[watched.transitions[closed, 1]].tolist() == [True, False]


def test_the_automaton_and_the_property_are_right():
    lamp, _, off = automata()
    language = parse_automaton(lamp)
    watched = parse_property(off, language.letters, language.classes)
    automaton = language.automaton
    # The lamp itself keeps the property wherever letters can follow.
    repaired = automaton.transitions[:, 1] >= 0
    assert (watched.transitions[0, 1, automaton.outputs[repaired, 1]] == 0).all()
    assert watched.bad[watched.transitions[0, 1, [1, 2]]].all()


@pytest.mark.parametrize(
    "code", [block for block in blocks("text") if block.values[0].startswith("statemix ")]
)
def test_commands_that_would_take_long_are_understood(code, tmp_path, monkeypatch):
    """Parse their options, next to a stored run and an automaton of the names that they use."""
    monkeypatch.chdir(tmp_path)
    for name, text in zip(
        ("lamp.txt", "no-read-after-close.txt", "off.txt"), automata(), strict=True
    ):
        Path(name).write_text(text)
    Path("log.txt").write_text(5 * traces())
    Path("runs/s3").mkdir(parents=True)
    stored = {"schema": SCHEMA, "asked": RunConfig(seed=3).asked(), "resolved": {}}
    Path("runs/s3/config.json").write_text(json.dumps(stored))
    for line in code.replace("\\\n", " ").splitlines():
        _, name, *arguments = shlex.split(line)
        assert callable(parse(name, arguments).run)


def test_the_versions_are_those_of_the_project():
    readme = " ".join((ROOT / "README.md").read_text().split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = project["requires-python"].removeprefix(">=")
    (torch,) = [one for one in project["dependencies"] if one.startswith("torch>=")]
    stated = f"Python {least} or newer and PyTorch {torch.removeprefix('torch>=')} or newer"
    assert stated in readme

    prefix = "Programming Language :: Python :: 3."
    (python,) = [one for one in project["classifiers"] if one.startswith(prefix)]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    tested = f"Python {python.split()[-1]}, PyTorch {pins['torch']} and NumPy {pins['numpy']}"
    contributing = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert f"The tests run with {tested} (" in contributing


def test_the_first_page_tracks_with_another_seed():
    """Its block asserts that what it has trained is right on long words."""
    text = (ROOT / "README.md").read_text()
    (code,) = [code for kind, code in BLOCK.findall(text) if "torch.manual_seed(0)" in code]
    assert "\nassert " in code
    exec(code.replace("manual_seed(0)", "manual_seed(1)"), {})


def anchors(path):
    """Return the anchors of the headings of a page, and those that it sets itself."""
    text = path.read_text()
    words = [heading.replace("`", "").lower() for heading in HEADING.findall(text)]
    named = {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", word)) for word in words}
    return named | set(re.findall(r'<a id="(.+?)">', text))


def test_links_lead_to_files_and_headings():
    links = [(path, target) for path in DOCUMENTS for target in LINK.findall(path.read_text())]
    for path, target in links:
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            assert file.is_file(), (path, target)
            assert not anchor or anchor in anchors(file), (path, target)


def test_counts_in_the_readme_are_those_of_the_rows():
    readme = (ROOT / "README.md").read_text()
    totals = (ROOT / "docs" / "generated" / "totals.md").read_text()
    numbers = dict(re.findall(r"^\| (.+) \| (.+) \|$", totals, re.MULTILINE))
    proven = numbers["networks of the recipe `exact` for groups, proven"]
    assert proven == "100 of 100, 0 of them with a refitted readout"
    assert "[100 of 100 networks](docs/state_tracking.md) are proven with their trained" in readme
    in_full = numbers["of the accuracies measured in full, equal to the paper within 0.05"]
    assert f"[{in_full} accuracies](docs/reproduction.md#read-the-results) measured" in readme
    agree, measured = numbers["of the measured accuracies, equal to the paper within 0.05"].split(
        " of "
    )
    assert f"of all {measured} measured, {agree} do." in " ".join(readme.split())


def cells(name):
    """The lines of a generated table, as lists of cells."""
    text = (ROOT / "docs" / "generated" / f"{name}.md").read_text()
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_claims_of_the_readme_are_those_of_the_tables():
    readme = " ".join((ROOT / "README.md").read_text().split())
    large = [line for line in cells("larger_groups") if line[0].startswith("S_")]
    assert [line[2:4] for line in large if line[1] == "recipe `exact`"] == [["10 of 10", "0"]] * 3
    assert "[30 of 30](docs/studies/larger-groups.md), all with a refitted readout" in readme

    times = {tuple(line[:2]): line[2:] for line in cells("layers")[2:]}
    for size, fastest, text in (
        ("4x256x768", "bd_lru num_blocks=192 block_size=4", "[{} to {} times as fast]"),
        ("8x512x256", "bd_lru num_blocks=73 block_size=4", "and {} to {} times at width 256"),
    ):
        of_lstm = [float(one) for one in times[f"`{fastest}`", size][1::2]]
        if size == "8x512x256":
            # Equal parameters and other batches.
            (others,) = [x[2:] for x in cells("fixed_point_costs") if x[0].startswith("bd_lru")]
            of_lstm += map(float, others)
        assert text.format(*(f"{1 / find(of_lstm):.1f}" for find in (max, min))) in readme

    exact = {tuple(line[:3]): line[3] for line in cells("monitors")[2:]}
    found = {
        learner: [text for key, text in exact.items() if key[1:] == ("2%", learner)]
        for learner in ("statemix learn", "RPNI", "LSTM", "Alergia EDSM")
    }
    assert "with 2% wrong labels in [9 of 9 runs](docs/studies/monitors.md)" in readme
    assert found["statemix learn"] == ["3 of 3"] * 3
    known = sum(int(text[0]) for text in found["Alergia EDSM"])
    index = " ".join((ROOT / "docs" / "index.md").read_text().split())
    assert f"the algorithm Alergia EDSM in {known}, and RPNI in none" in index
    assert all(text.startswith("0 of 3") for text in found["RPNI"] + found["LSTM"])

    *_, slowest = sorted(cells("fixed_point_costs")[2][2:])
    assert f"no iterations, [{float(slowest):.1f} times](docs/choosing.md" in readme

    *recipe, others = cells("perfect_scores")[2:]
    perfect, refuted = others[2:4]
    assert f"refutes [{refuted} of {perfect} networks](docs/studies/perfect-scores.md)" in readme
    assert recipe[0][0] == "recipe `exact`"
    assert recipe[0][2:] == [recipe[0][2], "0", f"{recipe[0][2]} of {recipe[0][2]}"]

    checks = cells("conform")
    foreign = checks[0].index("BD-LRU")
    assert foreign == 5  # after the heading of the line
    assert f"[{len(checks) - 2} checks](docs/conform.md)" in readme
    for line in checks[2:]:
        assert set(line[foreign:]) == {"equal"}
        if line[0].startswith(("`right_padding", "`packed")):
            assert "equal" not in line[1:foreign]


@pytest.mark.parametrize(
    "room", ["layers", "learning", "models", "ops", "proofs", "tasks", "training"]
)
def test_the_reference_lists_every_public_name(room):
    page = (ROOT / "docs" / "api" / f"{room}.md").read_text()
    listed = [name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    assert sorted(listed) == sorted(importlib.import_module(f"statemix.{room}").__all__)


def test_code_fits_into_a_window():
    """The site shows 88 columns of code in a window of 1,300 pixels."""
    codes = [code for path in DOCUMENTS for _, code in BLOCK.findall(path.read_text())]
    assert not [line for code in codes for line in code.splitlines() if len(line) > 88]


def test_the_site_needs_no_network():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "://" not in settings
    assert "  - offline\n" in settings
    scripts = re.findall(r"^ +- (javascripts/\S+)", settings, re.MULTILINE)
    assert all((ROOT / "docs" / script).is_file() for script in scripts)
