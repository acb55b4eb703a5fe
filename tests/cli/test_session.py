"""What all commands share: help, version, errors, and what reaches a terminal."""

import os
import pathlib
import subprocess
import sys
import warnings

import pytest

import sghmc
from sghmc.cli import session


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["reproduce", "--help"]])
def test_help_reads_in_80_columns(invoke, arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    for word in {"--help": ("demo", "reproduce", "--version")}.get(arguments[0], ("--seed",)):
        assert word in result.output


def test_version(invoke):
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, f"sghmc {sghmc.__version__}\n")


def test_escape_sequences_do_not_reach_the_terminal(invoke, tmp_path, capsys):
    """Names of columns are somebody else's: shown as a program would write them."""
    hostile = "\x1b]0;owned\x07 \u202e\u2028name"
    (tmp_path / "table.csv").write_text(f"{hostile},b\n1,2\n")
    result = invoke("fit", tmp_path / "table.csv", "--target", "c", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "the table has \\x1b]0;owned\\x07 \\u202e\\u2028name, b" in result.stderr
    session.print_table([hostile], [[hostile], ["σ² – fine"]])
    session.show(f"{hostile}\nσ² – fine")
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07\u202e\u2028")
    assert shown.count("\\x1b]0;owned") == 3
    assert shown.count("σ² – fine\n") + shown.count("σ² – fine ") == 2
    session.print_table(["id"], [["1\n2"], ["3"]])
    assert "1\\n2" in capsys.readouterr().out, "an id with a line break looks like two"


def test_warnings_are_one_message(capsys):
    """Not the file and line of the library where something was noticed."""
    before = warnings.showwarning
    with session.work(debug=False):
        warnings.simplefilter("always")
        warnings.warn("the fit has not converged", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "sghmc: the fit has not converged\n"
    assert warnings.showwarning is before


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [["-m", "sghmc"], [pathlib.Path(sys.executable).with_name("sghmc")]]
)
def test_the_command_and_the_module_are_the_same(way):
    command = [sys.executable, *way] if way[0] == "-m" else way
    if way[0] != "-m" and not way[0].exists():
        pytest.skip("sghmc is not installed here, only on the path")
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"sghmc {sghmc.__version__}\n"


@pytest.mark.slow
def test_compiled_programs_are_kept_where_possible(tmp_path):
    code = (
        "import jax; from sghmc.cli import session; session.keep_compiled_programs(); "
        "print(jax.config.values['jax_compilation_cache_dir'])"
    )

    def chosen(cache_home: str) -> str:
        environment = {
            "XDG_CACHE_HOME": cache_home,
            "PATH": "",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()

    assert chosen("/dev/null/nowhere") == "None"
    assert chosen(str(tmp_path)).startswith(str(tmp_path / "sghmc"))
