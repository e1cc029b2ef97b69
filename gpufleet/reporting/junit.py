"""A smoke test as JUnit XML, which CI systems show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from xml.etree import ElementTree


class Step(Protocol):
    """See `gpufleet.engine.smoke.Step`."""

    @property
    def name(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def failure(self) -> str | None: ...
    @property
    def exit_code(self) -> int: ...


def junit(fleet: str, steps: Sequence[Step]) -> str:
    """One test case for each step."""
    failed = sum(step.failure is not None for step in steps)
    total = f"{sum(step.seconds for step in steps):.3f}"
    numbers = {"tests": str(len(steps)), "failures": str(failed), "errors": "0", "time": total}
    suite = ElementTree.Element("testsuite", {"name": f"gpufleet smoke {fleet}", **numbers})
    for step in steps:
        about = {"classname": "gpufleet.smoke", "name": step.name, "time": f"{step.seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", about)
        if step.failure is not None:
            ElementTree.SubElement(case, "failure", {"message": step.failure, "type": f"exit {step.exit_code}"})
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
