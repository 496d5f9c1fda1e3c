"""Suites of exactness on the page of results."""

import re

import pytest
from selenium.webdriver.common.by import By

from statemix import provenance
from statemix.layers import LayerSpec
from statemix.studies.conditions import Condition
from statemix.studies.exactness import exact_section as section
from statemix.studies.exactness import exact_suites as suites
from statemix.studies.exactness.exact_suite import ExactSuite
from statemix.studies.higher_order import results_page as page
from statemix.studies.store import key
from statemix.tasks import TaskSpec
from statemix.training import ModelConfig, RunConfig, ScheduleConfig

CONFIGS = tuple(
    RunConfig(
        task=TaskSpec("permutation", group="S_3"),
        model=ModelConfig(layers=(LayerSpec("lstm"),)),
        schedules=ScheduleConfig(num_steps=1),
        seed=seed,
    )
    for seed in range(3)
)
CERTIFICATES = [
    {"verdict": "proven", "word": [], "network": "pruned"},
    {"verdict": "refuted", "word": [2, 5], "network": "hardened"},
    {"verdict": "open", "word": [], "network": "as trained"},
]


@pytest.fixture
def rows(monkeypatch):
    """Three runs of a suite of one condition: one proven, one refuted, one open."""
    suite = ExactSuite("exact-groups", "tiny", (Condition("exact-groups", "S_3", "A", CONFIGS),))
    monkeypatch.setattr(suites, "SUITES", {"exact-groups": suite})
    monkeypatch.setattr(section, "SUITES", {"exact-groups": suite})
    return {
        key(config): {
            "key": key(config),
            "seed": config.seed,
            "status": "done",
            "certificate": certificate,
            "certify_s": 0.5,
            "time_s": 60.0 + 10 * config.seed,
            "attempts": [{"passed": n == config.seed} for n in range(config.seed + 1)],
            "test": {
                str(length): {"product": {"token_accuracy": value}}
                for length, value in ((16, 1.0), (1024, 0.5))
            },
            "best_test": {},
            "environment": provenance.describe()
            | {"commit": "0123456789abcdef", "tree_clean": config.seed != 1},
        }
        for config, certificate in zip(CONFIGS, CERTIFICATES, strict=True)
    }


def test_a_suite_is_on_the_page_with_every_run(rows):
    html = page.render(rows)
    assert "exact-groups: tiny" in html
    cells = re.findall(r"<td>(.*?)</td>", html[html.index('id="exact-groups"') :])
    # 3 of 6 attempts: Wilson's interval is symmetric about a half.
    assert cells[:5] == [
        "A",
        "1 of 3 (1 refuted, 1 open)",
        "3 of 6 (.188–.812)",
        "1 min 10 s, 1 min 20 s",
        "1.000 … .500",
    ]
    assert html.count("data:image/png") == 4
    assert "<td>refuted: 2 5</td><td>2 attempts</td><td>1 min 10 s</td><td>0123456+</td>" in html
    assert "<td>open</td><td>3 attempts</td><td>1 min 20 s</td><td>0123456</td>" in html


def test_a_suite_without_results_is_not_on_the_page(rows):
    assert "exact-groups" not in page.render({})


def test_a_browser_shows_it_on_a_narrow_screen(rows, tmp_path, browser, emulate):
    page.write(rows, tmp_path / "index.html")
    emulate(390, "light")
    browser.get((tmp_path / "index.html").as_uri())
    assert browser.get_log("browser") == []
    for picture in browser.find_elements(By.TAG_NAME, "img"):
        assert browser.execute_script("return arguments[0].naturalWidth > 0", picture)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
