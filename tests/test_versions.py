"""The oldest versions, those that are pinned, and the table of CONTRIBUTING agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = [*PROJECT["dependencies"]]
WANTED += [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
PINNED = dict(
    line.lower().split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
)
CORE = ("numpy", "scipy", "scikit-learn", "pandas", "matplotlib")
TABLE = {
    row[0].split()[0].lower(): row
    for row in re.findall(
        r"^\| (\w[^|]*?) \| ([\d.]+) \| ([\d.]+) \| ([^|]*) \|$",
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def split(requirement: str) -> tuple[str, str, str]:
    """The name, the oldest and the first too new version of a requirement."""
    if "==" in requirement:
        name, only = requirement.split("==")
        return name, only, f"{only}.1"
    name, oldest, _, newest = re.fullmatch(
        r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(,<([\d.]+))?", requirement
    ).groups()
    return name.lower(), oldest, newest or "9999"


@pytest.mark.parametrize("requirement", sorted(set(WANTED)))
def test_the_pinned_version_is_one_that_is_allowed(requirement):
    name, oldest, newest = split(requirement)
    assert numbers(oldest) <= numbers(PINNED[name]) < numbers(newest)


@pytest.mark.parametrize("name", CORE)
def test_the_oldest_version_is_that_of_the_table_and_no_newer_than_spec_0_asks(name):
    (oldest,) = {old for own, old, _ in map(split, WANTED) if own == name}
    _, works, asked, _ = TABLE[name]
    assert numbers(works) == numbers(oldest) <= numbers(asked) <= numbers(PINNED[name])


def test_every_python_from_the_oldest_on_is_said_and_tested():
    _, oldest, asked, _ = TABLE["python"]
    assert PROJECT["requires-python"] == f">={oldest}"
    said = [
        line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)
    ]
    first, last = numbers(oldest)[1], numbers(said[-1])[1]
    assert said == [f"3.{minor}" for minor in range(first, last + 1)] and asked in said
    tested = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    matrix = "[" + ", ".join(f'"{version}"' for version in said) + "]"
    assert tested.count(f"python: {matrix}") == 2


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem
)
def test_workflows_have_few_rights_and_no_secrets(path):
    """Rights are to read, but for jobs that publish; every action has a major version."""
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read\n(?! )", text, re.MULTILINE)
    assert "secrets." not in text and "pull_request_target" not in text
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action), action
    assert text.count("timeout-minutes:") == text.count("runs-on:")


@pytest.mark.parametrize("name", ["tests", "newest"])
def test_jobs_that_run_the_tests_of_the_docs_install_what_builds_the_docs(name):
    """Of the tests of the docs two read docstrings with griffe, which only the extra `docs` brings."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    jobs = [
        job for job in re.split(r"^  (?=[a-z]+:$)", text, flags=re.MULTILINE) if "pytest" in job
    ]
    whole = [job for job in jobs if "--ignore tests/site" in job]
    assert len(whole) == 1 and "'.[dev,docs]'" in whole[0]
    assert not any("tests/docs" in job for job in jobs if job not in whole)
