"""Bare loops in C, compiled on the spot where there is a compiler."""

import pathlib
import shutil
import subprocess
import tempfile

from workloads.timing import Program

_FOLDER = pathlib.Path(__file__).parent


def compiled(source: str, *arguments: int) -> Program | None:
    """A C program that prints its seconds a step; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    program = pathlib.Path(tempfile.mkdtemp(prefix="sghmc-bench-")) / "bare"
    command = [compiler, "-O3", "-march=native", "-fopenmp", "-o", program, _FOLDER / source, "-lm"]
    if subprocess.run(command, check=False).returncode:
        return None

    def run() -> float:
        given = [str(program), *map(str, arguments)]
        return float(subprocess.run(given, capture_output=True, text=True, check=True).stdout)

    return run
