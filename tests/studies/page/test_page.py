"""Templates of pages, and writing their files."""

import base64

import jinja2
import pytest

from statemix.studies import html as page


def test_values_are_escaped_and_missing_ones_refused():
    template = page.templates().from_string("<p>{{ text }}</p>")
    assert template.render(text="<b>") == "<p>&lt;b&gt;</p>"
    with pytest.raises(jinja2.UndefinedError):
        template.render()


def test_a_template_that_is_not_there_is_named():
    with pytest.raises(jinja2.TemplateNotFound, match=r"nowhere\.html"):
        page.templates().get_template("nowhere.html")


def test_images_are_held_by_their_addresses():
    (address,) = page.data_uris({"one": b"image"}).values()
    assert base64.b64decode(address.removeprefix("data:image/png;base64,")) == b"image"


def test_files_are_written_whole_and_nothing_is_left_beside_them(tmp_path):
    paths = page.write(tmp_path, {"a.html": b"page", "b.png": b"image"})
    assert [path.read_bytes() for path in paths] == [b"page", b"image"]
    assert sorted(tmp_path.iterdir()) == paths


def test_environment_names_versions_and_machine():
    environment = {
        "python": "3.11.2",
        "packages": {"statemix": None, "torch": "2.13.0"},
        "cpu": "Example CPU",
        "cpu_count": 2,
    }
    assert page.environment_parts(environment) == [
        "Statemix (not installed)",
        "PyTorch 2.13.0",
        "Python 3.11.2",
        "Example CPU, 2 cores",
    ]
