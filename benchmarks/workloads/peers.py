"""Other libraries, each in a virtual environment of its own, that take turns with ours."""

import pathlib
import subprocess
import sys
from typing import IO

from workloads.timing import Program

_FOLDER = pathlib.Path(__file__).parents[1]
PACKAGES = {
    "blackjax": ["blackjax"],
    "posteriors": ["posteriors", "torch==2.13.*"],
    "devinterp": ["devinterp==1.3.2", "torch==2.13.*"],
}
"""What a peer's environment holds. The version of torch is one that comes built for CPUs, too."""


class Peer:
    """A library that runs a workload whenever it is asked: a program of this process's kind."""

    def __init__(self, name: str, folder: pathlib.Path, *workload: object):
        python = environment(name, folder)
        command = [python, "-W", "ignore", "-m", f"workloads.peer_{name}", *map(str, workload)]
        self.process = subprocess.Popen(
            command, cwd=_FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self) -> float:
        _pipe(self.process.stdin).write("go\n")
        _pipe(self.process.stdin).flush()
        answer = _pipe(self.process.stdout).readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}.")
        return float(answer)

    def close(self) -> None:
        _pipe(self.process.stdin).close()
        self.process.wait()


def environment(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The peer's Python; its environment is made where it is missing."""
    home = folder / name
    ready, python = home / "ready", home / "bin" / "python"
    if not ready.exists():
        print(f"Installing {name} into {home} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
        ready.touch()
    return python


def started(
    names: list[str], folder: pathlib.Path, *workload: object
) -> tuple[dict[str, Program], list[str]]:
    """The peers' programs, and what to say of those that cannot run here."""
    programs, notes = {}, []
    for name in names:
        try:
            peer = Peer(name, folder, *workload)
            peer()
            programs[name] = peer
        except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
            notes.append(f"{name} could not be installed or run here: {error}")
    return programs, notes


def close(programs: dict[str, Program]) -> None:
    for program in programs.values():
        assert isinstance(program, Peer)
        program.close()


def answer(run: Program) -> None:
    """The peer's side: one run for each line that comes in."""
    for _ in sys.stdin:
        print(f"{run():.6e}", flush=True)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
