"""What .github/ tells GitHub: its form is checked by `make lint`, here what the steps do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, output_of

from torch_ops._install import supported

yaml = pytest.importorskip("yaml")

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
FORMS = sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    return dict(read(workflow)["jobs"])


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(workflow).values():
        yield from job.get("steps", [])


def names(workflows: list[Path]) -> list[str]:
    return [path.stem for path in workflows]


def test_the_workflows() -> None:
    assert names(WORKFLOWS) == ["docs", "lint", "release", "tests", "wheels"]
    for path in WORKFLOWS:
        assert read(path)["name"] == path.stem


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=names(WORKFLOWS))
def test_each_step_is_a_make_target(workflow: Path) -> None:
    """So what CI does can be done, and is tested, anywhere."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variable = r"[A-Z_]+=\S+"
    output = r' >> "\$GITHUB_OUTPUT"'
    for step in steps(workflow):
        if "run" in step:
            found = re.fullmatch(
                rf"(?:{variable} )*make (?:--silent )?([a-z-]+)({output})?", step["run"]
            )
            assert found is not None, step["run"]
            assert found[1] in targets, step["run"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=names(WORKFLOWS))
def test_actions_are_pinned(workflow: Path) -> None:
    """To a commit, since a tag may be moved; the version that it is stands beside it."""
    text = workflow.read_text("utf-8")
    used = re.findall(r"\buses: (.*)$", text, re.MULTILINE)
    assert len(used) == text.count("uses:")
    for line in used:
        if line.startswith("./"):
            assert (ROOT / line).is_file()
        else:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_one_version() -> None:
    text = "".join(path.read_text("utf-8") for path in WORKFLOWS)
    pins = set(re.findall(r"\buses: ([\w./-]+)@(\w+)", text))
    assert len(pins) == len(dict(pins))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=names(WORKFLOWS))
def test_rights_and_limits(workflow: Path) -> None:
    assert read(workflow)["permissions"] == {"contents": "read"}
    for name, job in jobs(workflow).items():
        if "uses" not in job:
            assert job["timeout-minutes"] <= 360, name  # a job's limit at GitHub
        # Who may write must have been let by a person, or by a setting of the repository.
        assert not job.get("permissions") or "environment" in job, name
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=names(WORKFLOWS))
def test_versions_are_those_that_are_supported(workflow: Path) -> None:
    printed = output_of("make", "--silent", "supported", cwd=ROOT)
    outputs = re.findall(r"^(\w+)=", printed, re.MULTILINE)
    for name, job in jobs(workflow).items():
        for axis, values in job.get("strategy", {}).get("matrix", {}).items():
            assert values == f"${{{{ fromJSON(needs.supported.outputs.{axis}) }}}}", name
            assert axis in outputs, name
            assert axis in jobs(workflow)["supported"]["outputs"], name
        needs = job.get("needs", [])
        named = {needs} if isinstance(needs, str) else set(needs)
        assert named <= set(jobs(workflow)), name
        if "container" in job:
            cuda = re.findall(r":cuda(\d+)\.", job["container"])
            assert cuda == [supported.CUDA_MAJOR]
    for step in steps(workflow):
        python = step.get("with", {}).get("python-version", "3.12")
        assert python in (*supported.PYTHON, "${{ matrix.python }}")


def test_a_release_waits_for_a_person() -> None:
    (release,) = [path for path in WORKFLOWS if path.stem == "release"]
    assert read(release)[True] == {"push": {"tags": ["v*"]}}  # `on` is true, to YAML
    upload = jobs(release)["upload"]
    assert upload["environment"] == "pypi"
    assert upload["permissions"] == {"id-token": "write"}
    assert upload["needs"] == ["wheels", "sdist"]
    assert upload["steps"][-1]["with"] == {"attestations": True}
    assert "secrets." not in release.read_text("utf-8")  # no token that could be stolen


@pytest.mark.parametrize("form", FORMS, ids=names(FORMS))
def test_forms_ask_what_is_installed(form: Path) -> None:
    (field,) = [field for field in read(form)["body"] if field.get("id") == "installation"]
    assert field["attributes"]["label"] == "The output of python -m torch_ops"
    required = field.get("validations", {}).get("required", False)
    assert required == (form.stem != "feature")


def test_the_pull_request_template_names_what_exists() -> None:
    text = (FOLDER / "pull_request_template.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert (ROOT / "changelog.d").is_dir()
