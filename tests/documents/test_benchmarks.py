"""Benchmarks: every command that a page cites is there, and every script runs in small."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = {
    path.name
    for path in (ROOT / "benchmarks").glob("*.py")
    if "__main__" in path.read_text("utf-8")
}
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "benchmarks/README.md")),
    *(ROOT / "src").rglob("*.py"),
]
PARTS = {
    name: re.findall(r'"([\w-]+)": "\w+"', (ROOT / "benchmarks" / name).read_text("utf-8"))
    for name in ("pytorch.py", "samplers.py", "scaling.py")
}
PARTS["recommender.py"] = ["myfm", "folds", "implicit", "fold-in", "top", "scale", "lazy"]
NOT_SMALL = {
    "mutants.py": "test_faults.py reads its lists",
    "same_bits.py": "test_recorded_runs.py calls it",
    "random_faults.py": "it runs tests itself",
    "transformer.py": "it needs a GPU or minutes",
    "pytorch.py": "it needs PyTorch: test_torch_laws.py runs a part",
}
"""Scripts that no test here runs in small, and why."""
SMALL = {
    "scaling.py compile": "--turns 1 --width 16 --depth 2",
    "scaling.py hosts": "--turns 1 --rows 800 --sizes 100000 1000000",
    "scaling.py checkpoint": "--seconds 0.1 --pairs 1",
    "scaling.py checkpoint --memory": "--draws 1000 --size 10",
    "scaling.py file": "--folder OUT --rows 5000 --memory-rows 5000 --rounds 1 --steps 100 "
    "--case 50 1 own",
    "samplers.py libraries": "--peers",
    "samplers.py palindromes": "--batch 50000",
    "samplers.py austerity": "--draws 5",
    "samplers.py equal-cost": "--quick --only gaussian",
    "recommender.py myfm": "--synthetic 30 20 --rank 2 --iterations 0 --draws 3 5",
    "recommender.py folds": "--synthetic 30 20 --rank 2 --draws 3 --only 2 4",
    "recommender.py implicit": "--synthetic 30 20 --rank 2 --draws 3 --peers",
    "recommender.py fold-in": "--synthetic 30 20 --rank 2 --draws 3 --new 5 --refit",
    "recommender.py top": "--users 40 --items 20 --rank 2 --draws 3 --seen 2 -k 4",
    "recommender.py scale": "--users 40 --items 20 --rank 2 --draws 3 --ratings 400",
    "recommender.py scale --estimate": "--users 40 --items 20 --rank 2 --draws 3 --ratings 400",
    "recommender.py lazy": "--tables 1000 --batch 1000 --steps 5 --items 200 --rank 2",
    "llc.py": "--sizes 1e3 --seeds 1",
    "answer.py": "--only eight --repeat 1 --peers --no-errors",
    "estimators.py": "--data wine --folds 2",
    "uci.py": "--sets waves --splits 1 --out OUT",
    "million.py": "--rows 5000 --columns 3 --chains 4 --draws 20 --nuts-warmup 2 --nuts-draws 2",
    "verdicts.py": "--only Gumbel --draws 100",
    "speed.py": "--quick --only W1 --repeats 1 --peers --out OUT",
    "referee.py": "--targets banana --samplers SGHMC --seeds 1 --out OUT",
}
"""A run of seconds for each script or part; OUT is an empty folder."""


def cited() -> set[tuple[str, str]]:
    """Return the commands on pages: the script, and the word after it."""
    found = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        found |= set(re.findall(r"benchmarks/(\w+\.py)(?:\s+([a-z][\w-]*))?", text))
    return found


def test_cited_commands_are_there():
    commands = cited()
    assert {script for script, _ in commands} <= SCRIPTS
    for script, word in commands:
        if script in PARTS:
            assert word in PARTS[script], f"{script} {word}"


def test_every_script_is_on_the_page_of_benchmarks():
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    rows = set(re.findall(r"^\|.*?(\w+\.py)", text, re.MULTILINE))
    assert rows >= SCRIPTS - {"mutants.py"}  # CONTRIBUTING.md has it
    for script, parts in PARTS.items():
        assert all(f"{script} {part}" in text for part in parts)


def test_every_script_runs_in_small_or_says_why_not():
    assert {command.split()[0] for command in SMALL} | set(NOT_SMALL) >= SCRIPTS


@pytest.mark.slow
@pytest.mark.parametrize("command", SMALL)
def test_a_script_runs_in_small(command, tmp_path):
    script, *words = command.split()
    if command == "scaling.py hosts" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    options = SMALL[command].replace("OUT", str(tmp_path)).split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    numbers = np.array(re.findall(r"\d+\.\d+", done.stdout), float)
    assert len(numbers) > 0
