"""Which faults at random places of the source do the tests see?

    python benchmarks/random_faults.py --coverage             # once: which test runs which line
    python benchmarks/random_faults.py --count 300 --seed 0   # goes on where it was stopped
    python benchmarks/random_faults.py --coverage tests/samplers --out results/samplers
    python benchmarks/random_faults.py --count 40 --only samplers/ --out results/samplers

A place is a line of `src/sghmc`, drawn by the seed; what becomes of it is one of the operators in
`OPERATORS`, drawn by the seed too. Each fault is planted alone, in a copy of the repository, and
the tests run there that the line's coverage selects: first those of `make test`, with the file's
own tests in front; where they see nothing, the slow ones. Faults of `sghmc.torch` are drawn only
where PyTorch can be imported.

A fault that no test could see is listed in `benchmarks/equivalent_faults.toml` with its reason, and
leaves the count. Writes `seed-N.json` into `--out` after every fault, and prints which
ones were not seen.
"""

import argparse
import ast
import concurrent.futures
import copy
import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator

from mutants import DEFAULT, FAULTS, ROOT, Copies

COVERAGE = {DEFAULT: "default.coverage", "slow": "slow.coverage"}
SOURCE = ROOT / "src" / "sghmc"


@dataclasses.dataclass(frozen=True)
class RandomFault:
    """One expression or statement of a file, and the text that replaces it."""

    file: str
    """Path inside src/sghmc."""
    line: int
    operator: str
    start: int
    end: int
    """Offsets of the replaced text in the file."""
    new: str
    before: str
    after: str
    """The lines of the fault, without and with it."""

    @property
    def path(self) -> str:
        return f"src/sghmc/{self.file}"

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} [{self.operator}] {self.before}  =>  {self.after}"

    @property
    def identity(self) -> str:
        """What stays the same when the line moves within its file."""
        text = f"{self.file}|{self.operator}|{self.before}|{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def planted(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


# --- operators: each yields pairs of a node and the code that replaces it -----------------------

Replacements = Iterator[tuple[ast.AST, ast.AST | str]]


def sign(node: ast.AST) -> Replacements:
    """Change a + b into a − b, and −a into a."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield node, ast.BinOp(node.left, other, node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node, node.operand


def factor(node: ast.AST) -> Replacements:
    """Change a · b into a / b and back, and aᵇ into a."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        other = ast.Div() if isinstance(node.op, ast.Mult) else ast.Mult()
        yield node, ast.BinOp(node.left, other, node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield node, node.left


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def comparison(node: ast.AST) -> Replacements:
    """Change < into ≤, = into ≠ and so on, `and` into `or`, and a condition into its opposite."""
    if isinstance(node, ast.Compare):
        other = copy.copy(node)
        other.ops = [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        yield node, other
    if isinstance(node, ast.BoolOp):
        swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, ast.BoolOp(swapped, node.values)
    if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)


def constant(node: ast.AST) -> Replacements:
    """Change n into n + 1, x into 2x, and True into False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield node, ast.Constant(_other_number(node.value))


def _other_number(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) or value == 0 else 2 * value


def axis(node: ast.AST) -> Replacements:
    """Change the axis of an array function to its neighbour, or the last to the first."""
    if isinstance(node, ast.keyword) and node.arg in ("axis", "dim", "axes"):
        found = node.value.operand if isinstance(node.value, ast.UnaryOp) else node.value
        if isinstance(found, ast.Constant) and isinstance(found.value, int):
            is_last = isinstance(node.value, ast.UnaryOp)
            yield node.value, ast.Constant(0 if is_last else found.value + 1)


def index(node: ast.AST) -> Replacements:
    """Change a[0] into a[1], a[1:] into a[2:] and a[:n] into a[: n + 1]."""
    if not isinstance(node, ast.Subscript):
        return
    for entry in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        if isinstance(entry, ast.Slice):
            for bound in (entry.lower, entry.upper):
                if bound is not None:
                    yield bound, ast.BinOp(bound, ast.Add(), ast.Constant(1))
        elif isinstance(entry, ast.Constant) and isinstance(entry.value, int):
            yield entry, ast.Constant(entry.value + 1)
        elif isinstance(entry, ast.UnaryOp) and isinstance(entry.op, ast.USub):
            yield entry, ast.Constant(0)


def dropped_term(node: ast.AST) -> Replacements:
    """Change a + b, a − b, a · b or a / b into a alone, and a · b or a + b into b alone."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        yield node, node.left
        if isinstance(node.op, ast.Add | ast.Mult):
            yield node, node.right


def swapped_arguments(node: ast.AST) -> Replacements:
    """Change f(a, b) into f(b, a), and a − b, a / b or a @ b into b − a, b / a or b @ a."""
    if isinstance(node, ast.Call):
        first = node.args[:2]
        # Values of different kinds, such as a function and a tree, fail on the spot: too easy.
        plain = [isinstance(each, ast.Name | ast.Attribute | ast.Subscript) for each in first]
        is_check = isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if plain == [True, True] and not is_check and ast.dump(first[0]) != ast.dump(first[1]):
            yield node, ast.Call(node.func, [*first[::-1], *node.args[2:]], node.keywords)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.MatMult):
        yield node, ast.BinOp(node.right, node.op, node.left)


def deleted_statement(node: ast.AST) -> Replacements:
    """Delete a call made for its effect, an update in place, or a check that raises or returns."""
    is_call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield)
    is_check = (
        isinstance(node, ast.If)
        and not node.orelse
        and isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue)
    )
    if is_call or is_check or isinstance(node, ast.AugAssign):
        yield node, "pass"


OPERATORS: tuple[Callable[[ast.AST], Replacements], ...] = (
    sign, factor, comparison, constant, axis, index, dropped_term, swapped_arguments,
    deleted_statement,
)  # fmt: skip


# --- places --------------------------------------------------------------------------------------


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run and decide something: no annotations, decorators or texts of errors."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_message = isinstance(child, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)
            if isinstance(child, ast.AST) and not is_message and not _is_named_all(child):
                yield from _nodes(child)


def _is_named_all(node: ast.AST) -> bool:
    targets = getattr(node, "targets", [])
    return any(getattr(target, "id", "") in ("__all__", "__version__") for target in targets)


def faults_of(file: str, text: str) -> list[RandomFault]:
    """Return every fault that the operators can make in a file."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        """Offset of a position; columns of the syntax tree count bytes."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for node in _nodes(ast.parse(text)):
        for operator in OPERATORS:
            for old, new in operator(node):
                start = offset(old.lineno, old.col_offset)  # pyright: ignore
                end = offset(old.end_lineno, old.end_col_offset)  # pyright: ignore
                code = new if isinstance(new, str) else f"({ast.unparse(new)})"
                if isinstance(new, ast.Constant):
                    code = code[1:-1]
                whole = text[:start] + code + text[end:]
                # Whole lines, so that a fault can be read.
                first, last = starts[old.lineno - 1], starts[old.end_lineno]  # pyright: ignore
                after = whole[first : last + len(whole) - len(text)]
                found.append(
                    RandomFault(
                        file, old.lineno, operator.__name__, start, end, code,  # pyright: ignore
                        _one_line(text[first:last]), _one_line(after),
                    )
                )  # fmt: skip
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_fault(fault: RandomFault, text: str) -> bool:
    """Check that the file can still be parsed, and is another program."""
    try:
        return ast.dump(ast.parse(fault.planted(text))) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False


def drawn(count: int, seed: int, only: str) -> list[RandomFault]:
    """Draw lines without replacement, and one fault for each; the same for the same source."""
    has_torch = importlib.util.find_spec("torch") is not None
    lines, faults = [], {}
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if only in file and (has_torch or not file.startswith("torch/")):
            text = path.read_text("utf-8")
            tree = ast.parse(text)
            places = {node.lineno for node in _nodes(tree) if isinstance(node, ast.expr | ast.stmt)}
            lines += [(file, line) for line in sorted(places)]
    generator = random.Random(seed)
    generator.shuffle(lines)
    chosen = []
    for file, line in lines:
        if len(chosen) == count:
            break
        text = (SOURCE / file).read_text("utf-8")
        if file not in faults:
            faults[file] = faults_of(file, text)
        here = [each for each in faults[file] if each.line == line and _is_fault(each, text)]
        if here:
            kinds = sorted({fault.operator for fault in here})
            kind = generator.choice(kinds)
            chosen.append(generator.choice([f for f in here if f.operator == kind]))
    return chosen


# --- tests ---------------------------------------------------------------------------------------


def record_coverage(folder: pathlib.Path, paths: list[str]) -> None:
    """Run these tests once, or all, and keep which of them ran which line."""
    folder.mkdir(parents=True, exist_ok=True)
    for marks, name in COVERAGE.items():
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "2", "-m", marks]
        command += [
            "--dist",
            "loadfile",
            "--cov=sghmc",
            "--cov-context=test",
            "--cov-report=",
            *paths,
        ]
        # A program that an earlier file compiled would hide the lines that this one traces.
        environment = os.environ | {"COVERAGE_FILE": str(folder / name), "SGHMC_TESTS_FORGET": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if done.returncode not in (0, 1, 5):  # a test that fails does not hide what the others ran
            sys.exit(done.returncode)


class Coverage:
    """Which tests run a line, from the database that coverage.py wrote."""

    def __init__(self, path: pathlib.Path):
        self.by_file = {}
        if not path.exists():  # no slow tests among those recorded
            return
        with sqlite3.connect(path) as database:
            files = dict(database.execute("select path, id from file"))
            contexts = dict(database.execute("select id, context from context"))
            self.by_file = {
                pathlib.Path(name).relative_to(SOURCE).as_posix(): [
                    (contexts[context].rpartition("|")[0], _set_bits(bits))
                    for context, bits in database.execute(
                        "select context_id, numbits from line_bits where file_id = ?", (number,)
                    )
                ]
                for name, number in files.items()
                if pathlib.Path(name).is_relative_to(SOURCE)
            }

    def tests(self, fault: RandomFault, last_line: int) -> list[str]:
        """Return node ids of tests that run the line, those of the file's own tests first."""
        lines = set(range(fault.line, last_line + 1))
        found = {test for test, ran in self.by_file.get(fault.file, []) if test and ran & lines}
        path = pathlib.PurePosixPath(fault.file)
        is_imported = any(
            not test and ran & lines for test, ran in self.by_file.get(fault.file, [])
        )
        if not found and is_imported:  # a module's constant: whoever tests the module
            found = {test for test, _ in self.by_file[fault.file] if test}
        own = (f"/test_{path.stem}.py", f"tests/{path.parent}/")

        def distance(test: str) -> tuple[int, str]:
            file = test.partition("::")[0]
            return (0 if file.endswith(own[0]) else 1 if file.startswith(own[1]) else 2, test)

        return sorted(found, key=distance)


def _set_bits(bits: bytes) -> set[int]:
    return {8 * i + j for i, byte in enumerate(bits) for j in range(8) if byte >> j & 1}


def look(copies: Copies, fault: RandomFault, coverage: dict[str, Coverage]) -> dict:
    """Plant a fault and run the tests of its line, the quick ones first."""
    source = (SOURCE / fault.file).read_text("utf-8")
    last_line = fault.line + source[fault.start : fault.end].count("\n")
    found: dict = {"seen": "", "by": "", "seconds": 0.0, "tests": 0}
    for marks, name in ((DEFAULT, "make test"), ("slow", "make test-all")):
        tests = coverage[marks].tests(fault, last_line)
        found["tests"] += len(tests)
        if not tests:
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(tests))
            file.flush()
            ended = copies.run((f"@{file.name}",), marks, fault)
        found["seconds"] = round(found["seconds"] + ended["seconds"], 1)
        if ended["code"] not in (0, 5):
            return found | {"seen": name, "by": ended["by"] or ended.get("output", "")[-300:]}
    return found


def equivalent() -> dict[str, str]:
    """Return the reasons why faults change nothing that a test could see, by their identity."""
    listed = tomllib.loads((FAULTS.parent / "equivalent_faults.toml").read_text("utf-8"))[
        "equivalent"
    ]
    return {entry["identity"]: entry["reason"] for entry in listed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--coverage", nargs="*", help="run these tests, or all, and record lines")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results" / "random-faults")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files with this in their path")
    parser.add_argument("--unseen", action="store_true", help="look again at those not seen")
    parser.add_argument("--list", action="store_true", help="print the faults, plant nothing")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bars", type=float, nargs=2, help="shares of make test and test-all")
    options = parser.parse_args()
    if options.coverage is not None:
        return record_coverage(options.out.resolve(), options.coverage)
    faults = drawn(options.count, options.seed, options.only)
    if options.list:
        return print("\n".join(f"{fault.identity} {fault.name}" for fault in faults))
    reasons = equivalent()
    file = options.out / f"seed-{options.seed}.json"
    seen = json.loads(file.read_text("utf-8")) if file.exists() else {}
    left = [
        fault
        for fault in faults
        if fault.identity not in reasons
        and (fault.name not in seen or (options.unseen and not seen[fault.name]["seen"]))
    ]
    coverage = {marks: Coverage(options.out / name) for marks, name in COVERAGE.items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        copies = Copies(pathlib.Path(folder), options.jobs)
        futures = {pool.submit(look, copies, fault, coverage): fault for fault in left}
        for future in concurrent.futures.as_completed(futures):
            fault = futures[future]
            seen[fault.name] = future.result()
            file.write_text(json.dumps(seen, indent=1), encoding="utf-8")
            print(f"{seen[fault.name]['seen'] or 'UNSEEN':13} {fault.name}", flush=True)
    counted = [fault for fault in faults if fault.identity not in reasons]
    results = [seen[fault.name]["seen"] for fault in counted]
    print(f"\nNot counted, because nothing could see them: {len(faults) - len(counted)}")
    print("Not seen, or only by slow tests:")
    for fault in counted:
        if seen[fault.name]["seen"] != "make test":
            how = seen[fault.name]["seen"] or "unseen"
            print(f"  {how}, {seen[fault.name]['tests']} tests: {fault.identity} {fault.name}")
    default, whole = (
        sum(result in names for result in results) / max(len(results), 1)
        for names in (("make test",), ("make test", "make test-all"))
    )
    print(f"{len(results)} faults: {default:.1%} seen by make test, {whole:.1%} by make test-all.")
    if options.bars and (default < options.bars[0] or whole < options.bars[1]):
        sys.exit(1)


if __name__ == "__main__":
    main()
