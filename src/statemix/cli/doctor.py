"""``statemix doctor``: versions, devices and backends of this machine."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import torch

from statemix import provenance
from statemix.errors import RequestError, RunsFailedError, suggestion
from statemix.ops import backends
from statemix.ops.cpu import CPU
from statemix.ops.selective_scan import check_selective_scan
from statemix.ops.triton.selfcheck import check_kernels

_CHECK = "{device:<8}{backend:<8}{outcome:<14}{case:<42}{detail}"


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices, the backend that serves each operator, and why others do not.

    With --check, the kernels of every device are also compared with the reference in float64, on
    more than 50 problems each. That takes seconds on a CPU and minutes on a GPU. The exit code is 1
    if a kernel is wrong or fails.
    """

    check: bool = False
    """Check all kernels of this machine."""

    json: bool = False
    """Print JSON, for programs and bug reports."""

    def run(self) -> None:
        """Print the report."""
        found = examine()
        if not self.json:
            print("\n".join(_lines(found)))
        if self.check:
            found["checks"] = []
            if not self.json:
                names = ("device", "backend", "outcome", "case", "detail")
                print("\n" + _CHECK.format(**dict(zip(names, names, strict=True))))
            for check in _checks(found["devices"]):
                found["checks"].append(check)
                if not self.json:
                    print(_CHECK.format(**check))
        if self.json:
            print(json.dumps(found, indent=2))
        checks = found.get("checks", [])
        if wrong := sum(check["outcome"] in ("disagrees", "fails") for check in checks):
            number = f"{wrong} of {len(checks)}"
            raise RunsFailedError(f"{number} checks failed; please report this output")


def parse(arguments: Sequence[str]) -> Doctor:
    """Parse a command line without the parser of the other commands, which needs pydantic."""
    if list(arguments) == ["--help"]:
        from statemix.cli.parser import parse_class

        return parse_class(Doctor, arguments, "statemix doctor")
    flags = {f"--{field.name}": field.name for field in fields(Doctor)}
    for flag in arguments:
        if flag not in flags:
            advice = suggestion(flag, flags) or "; see statemix doctor --help"
            raise RequestError(f"option must be one of {', '.join(flags)}, got {flag}{advice}")
    return Doctor(**{flags[flag]: True for flag in arguments})


def _checks(devices: Iterable[str]) -> Iterator[dict[str, str]]:
    """Check the fused kernels of each device that has some; yield one row for each problem."""
    fused = {"cpu": "cpu", "cuda": "triton"}
    for device in devices:
        backend = fused.get(device.partition(":")[0])
        if backend is not None and backends.BACKENDS[backend].unavailable() is None:
            scan = check_selective_scan(device, backend)
            for verdict in chain(check_kernels(device, backend), [scan]):
                yield {"device": device, "backend": backend, **verdict._asdict()}


def examine() -> dict[str, Any]:
    """Describe this installation and this machine as plain data."""
    found = provenance.describe()
    devices = {"cpu": found["cpu"]}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        kind = accelerator.type
        module = torch.get_device_module(kind)
        named = getattr(module, "get_device_name", lambda index: f"{kind} {index}")
        for index in range(torch.accelerator.device_count()):
            devices[f"{kind}:{index}"] = str(named(index))
    return {
        **found,
        "compiler": _compiler(),
        "devices": devices,
        "threads": torch.get_num_threads(),
        "operators": backends.report(list(dict.fromkeys(name.split(":")[0] for name in devices))),
    }


def _compiler() -> dict[str, str] | None:
    """Return the C++ compiler that would build the kernels, with all words of CXX."""
    try:
        program, *words = shlex.split(os.environ.get("CXX", "")) or [""]
    except ValueError:  # an unclosed quotation
        return None
    programs = [program] if program else ["g++", "clang++"]
    path = next(filter(None, map(shutil.which, programs)), None)
    if path is None:
        return None
    command = [path, *words]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    version = (done.stdout.splitlines() or ["unknown"])[0]
    return {"path": shlex.join(command), "version": version}


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    compiler = found["compiler"]
    facts = {
        **{name: version or "not installed" for name, version in found["packages"].items()},
        "python": found["python"],
        "platform": found["platform"],
        "compiler": f"{compiler['path']} ({compiler['version']})" if compiler else "none",
        "threads": f"{found['threads']} of {found['cpu_count']} cores",
        **{f"device {name}": what for name, what in found["devices"].items()},
        **{f"backend {name}": what or "unavailable" for name, what in found["backends"].items()},
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        yield f"{name:<{width}}  {value}"
    yield ""
    if CPU.unavailable() is not None:
        yield "The CPU kernels are missing: recurrences on the CPU run a slower loop in PyTorch."
        asked = os.environ.get("CXX")
        first = f"correct or unset CXX={asked!r}" if asked else "install g++ or clang++"
        cure = f"{first}, then repeat `pip install .`"
        if compiler is not None:
            cure = "repeat `pip install -v .`: its output shows why the compiler failed, if it does"
        yield f"To get them, {cure}."
        yield ""
    header = {name: name for name in ("operator", "device", "dtype", "backend")}
    for row in (header, *found["operators"]):
        backend = row["backend"] or "none"
        yield f"{row['operator']:<10}{row['device']:<8}{row['dtype']:<10}{backend}".rstrip()
    yield ""
    # A backend that cannot run here at all has that one reason, and not a device that it needs.
    reasons = dict.fromkeys(
        backends.BACKENDS[name].unavailable() or reason
        for row in found["operators"]
        for name, reason in row["others"].items()
    )
    for reason in reasons:
        yield f"- {reason}"
