"""``statemix conform``: check that language models compute the same however they are called."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import transformers

from statemix import provenance
from statemix.cli.parser import Argument
from statemix.errors import RequestError, RunsFailedError
from statemix.files import check_writable, write_file
from statemix.lm.conformity import TOLERANCE, ConformityResult, chosen_checks, conform, open_subject
from statemix.training.config import Positive
from statemix.training.settings import finite


@dataclass(frozen=True)
class Conform:
    """Check that language models of transformers compute the same however they are called.

    A text must have the same logits with a cache and without, padded, packed, in pieces, drafted by
    another model, after storing, in a larger vocabulary and compiled. A model without weights gets
    small sizes and random weights. The exit code is 1 if a check fails.

    statemix conform mamba2

    statemix conform my_model/config.json --imports my_model --junit conform.xml
    """

    models: Annotated[tuple[str, ...], Argument("MODEL", positional=True)]
    """Models to check: folders of models or runs, config.json files, or model types of
    transformers."""

    only: tuple[str, ...] = ()
    """Checks to run (all if not given)."""

    skip: tuple[str, ...] = ()
    """Checks to leave out, such as those of a contract that the model does not promise."""

    tolerance: Positive = TOLERANCE
    """Largest difference, relative to the largest logit, that counts as rounding."""

    junit: Annotated[Path | None, Argument("FILE")] = None
    """File that receives the results as JUnit XML."""

    json: bool = False
    """Print JSON instead of lines."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own models or layers."""

    def run(self) -> None:
        """Check the models and print a line for each check."""
        names = chosen_checks(self.only, self.skip)
        if self.junit is not None:
            check_writable("junit", self.junit, replaced=True)
        described = {**provenance.describe(), "transformers": transformers.__version__}
        found, refused = dict[str, list[ConformityResult]](), []
        for source in self.models:
            try:
                found[source] = self._check(source, names)
            except RequestError as error:
                # The results of other models must not be lost.
                refused.append(error)
        if self.json:
            rows = [{"model": m, **asdict(row)} for m, results in found.items() for row in results]
            print(json.dumps(finite({**described, "results": rows})))
        if self.junit is not None:
            write_file(self.junit, junit_of(found))
        if refused:
            raise refused[0]
        results = [result for rows in found.values() for result in rows]
        if failed := sum(result.failed for result in results):
            raise RunsFailedError(f"{failed} of {len(results)} checks failed")

    def _check(self, source: str, names: Sequence[str]) -> list[ConformityResult]:
        model, results = open_subject(source), []
        if not self.json:
            print(f"{source}, transformers {transformers.__version__}", flush=True)
        for name in names:
            # A line appears as soon as its check ends.
            (result,) = conform(model, only=[name], tolerance=self.tolerance)
            results.append(result)
            if not self.json:
                size = "" if result.difference is None else f"{result.difference:.2g}"
                line = f"  {name:<26}  {result.outcome:<7}  {size:<8}  {result.reason}"
                print(" ".join(line.splitlines()).rstrip(), flush=True)
        return results


def junit_of(found: dict[str, list[ConformityResult]]) -> bytes:
    """Return results as JUnit XML: a suite for each model, and a case for each check."""
    root = ElementTree.Element("testsuites", name="statemix conform")
    for source, results in found.items():
        number = Counter(result.outcome for result in results)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=source,
            tests=str(len(results)),
            failures=str(number["wrong"]),
            errors=str(number["error"]),
            skipped=str(number["skipped"]),
        )
        for result in results:
            case = ElementTree.SubElement(suite, "testcase", classname=source, name=result.check)
            tag = {"wrong": "failure", "error": "error", "skipped": "skipped"}.get(result.outcome)
            if tag is not None:
                text = result.reason or f"the difference is {result.difference:.3g}"
                # XML has no control characters.
                text = "".join(c if c.isprintable() else " " for c in text)
                ElementTree.SubElement(case, tag, message=text)
    return ElementTree.tostring(root)
