"""Which planted faults do the tests see?

    python benchmarks/mutants.py                      # all; goes on where it was stopped
    python benchmarks/mutants.py --only samplers      # names or files with this in them
    python benchmarks/mutants.py --sample 30 --seed 7 # some of them, as the nightly job does

`benchmarks/faults/*.toml` lists one-line faults: a name, the file, the old and the new text, the
tests that should see it, if not the file's own. Each is planted alone, in a copy of the
repository, and these tests run there: first those of `make test`; where they see nothing, the slow
ones too. Before anything is planted the same tests must pass.

Writes `results/mutants/seen.json` after every fault, and prints a table of the seen and unseen.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from typing import Protocol

ROOT = pathlib.Path(__file__).parents[1]
FAULTS = pathlib.Path(__file__).parent / "faults"
TIMEOUT = 1800
"""Seconds for the tests of a fault: one that hangs them counts as seen."""


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    file: str
    """Inside src/sghmc."""
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """Inside tests; by default the file's own."""
    harmless: str = ""
    """Why nobody need see it."""

    @property
    def path(self) -> str:
        return f"src/sghmc/{self.file}"

    @property
    def test_paths(self) -> tuple[str, ...]:
        if self.tests:
            return tuple(f"tests/{each}" for each in self.tests)
        path = pathlib.PurePosixPath(self.file)
        return (f"tests/{path.parent / f'test_{path.name}'}",)

    def planted(self, text: str) -> str:
        return text.replace(self.old, self.new)

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def read() -> list[Fault]:
    faults = []
    for path in sorted(FAULTS.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["fault"]:
            faults.append(Fault(**entry | {"tests": tuple(entry.get("tests", ()))}))
    return faults


class Planted(Protocol):
    """A fault that can be planted in a file of the repository."""

    @property
    def path(self) -> str: ...

    def planted(self, text: str) -> str: ...


class Copies:
    """Copies of the repository, one for each fault that is being looked at."""

    def __init__(self, folder: pathlib.Path, count: int):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        self.free: queue.Queue[pathlib.Path] = queue.Queue()
        for i in range(count):
            for name in filter(None, listed.split("\0")):
                target = folder / str(i) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).is_file():
                    shutil.copy2(ROOT / name, target)
            self.free.put(folder / str(i))

    def run(self, tests: tuple[str, ...], marks: str, fault: Planted | None = None) -> dict:
        """The tests in a copy that has the fault: how they ended, and the first that failed."""
        copy = self.free.get()
        path = copy / fault.path if fault else None
        whole = path.read_text("utf-8") if path else ""
        try:
            if fault and path:
                path.write_text(fault.planted(whole), encoding="utf-8")
            return _pytest(copy, tests, marks)
        finally:
            if path:
                path.write_text(whole, encoding="utf-8")
            self.free.put(copy)


def _pytest(folder: pathlib.Path, tests: tuple[str, ...], marks: str) -> dict:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks]
    # The copy's source comes first; what else PYTHONPATH names, PyTorch say, stays importable.
    paths = [str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"code": -1, "by": "time-out", "seconds": TIMEOUT}
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {
        "code": done.returncode,
        "by": failed[0].split(" - ")[0].split(" ", 1)[1] if failed else "",
        "seconds": round(time.perf_counter() - started, 1),
        "output": "" if done.returncode in (0, 1, 5) else done.stdout[-2000:] + done.stderr[-2000:],
    }


DEFAULT, SLOW = "not slow and not browser", "slow"


def look(copies: Copies, fault: Fault) -> dict:
    found = copies.run(fault.test_paths, DEFAULT, fault)
    if found["code"] not in (0, 5):
        return {"seen": "make test", **found}
    slow = copies.run(fault.test_paths, SLOW, fault)
    seen = "" if slow["code"] in (0, 5) else "make test-all"
    return {"seen": seen, **slow, "seconds": found["seconds"] + slow["seconds"]}


def check(faults: list[Fault]) -> None:
    """Every fault can be planted: its line is there once, and so are its tests."""
    names = [fault.name for fault in faults]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        sys.exit(f"Faults of the same name: {twice}.")
    for fault in faults:
        count = (ROOT / fault.path).read_text("utf-8").count(fault.old)
        if count != 1 or fault.old == fault.new:
            sys.exit(f"{fault.name}: {fault.old!r} stands {count} times in {fault.path}, not once.")
        for test in fault.test_paths:
            path, _, name = test.partition("::")
            place = ROOT / path
            if not place.exists() or (name and f"def {name}(" not in place.read_text("utf-8")):
                sys.exit(f"{fault.name}: there is no {test}.")


def table(faults: list[Fault], seen: dict[str, dict]) -> str:
    rows = ["| fault | file | seen by | test |", "| --- | --- | --- | --- |"]
    for fault in faults:
        found = seen[fault.digest]
        how = found["seen"] or (f"harmless: {fault.harmless}" if fault.harmless else "**unseen**")
        rows.append(f"| {fault.name} | {fault.file} | {how} | {found['by']} |")
    counts = [seen[fault.digest]["seen"] for fault in faults]
    default, whole = counts.count("make test"), sum(map(bool, counts))
    rows += ["", f"{whole} of {len(faults)} seen, {default} of them by `make test`."]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Which planted faults do the tests see?")
    parser.add_argument("--only", help="faults with this in their name or file")
    parser.add_argument("--sample", type=int, help="so many of them, at random")
    parser.add_argument("--seed", type=int, default=0, help="which ones --sample takes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="forget what was seen before")
    parser.add_argument("--fail", action="store_true", help="exit 1 if a fault was not seen")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results" / "mutants")
    options = parser.parse_args()
    faults = read()
    check(faults)
    if options.only:
        faults = [f for f in faults if options.only in f.name or options.only in f.file]
    if options.sample:
        faults = random.Random(options.seed).sample(faults, min(options.sample, len(faults)))
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "seen.json"
    seen = {} if options.again or not file.exists() else json.loads(file.read_text("utf-8"))
    left = [fault for fault in faults if fault.digest not in seen]
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        copies = Copies(pathlib.Path(folder), options.jobs)
        tests = sorted({test for fault in left for test in fault.test_paths})
        sound = pool.map(lambda test: copies.run((test,), DEFAULT), tests)
        for test, found in zip(tests, sound, strict=True):
            if found["code"] not in (0, 5):
                sys.exit(f"{test} fails with no fault planted: {found['by'] or found['output']}")
        futures = {pool.submit(look, copies, fault): fault for fault in left}
        for future in concurrent.futures.as_completed(futures):
            fault = futures[future]
            seen[fault.digest] = future.result()
            file.write_text(json.dumps(seen, indent=1), encoding="utf-8")
            print(f"{seen[fault.digest]['seen'] or 'UNSEEN':13} {fault.name}", flush=True)
    text = table(faults, seen)
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    unseen = [f for f in faults if not seen[f.digest]["seen"] and not f.harmless]
    if options.fail and unseen:
        sys.exit(1)


if __name__ == "__main__":
    main()
