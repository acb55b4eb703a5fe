"""What the tests of all commands share."""

import pytest
from typer.testing import CliRunner

from sghmc import cli
from sghmc.cli import session


@pytest.fixture(autouse=True, scope="module")
def no_compiled_programs_on_disk():
    """jax's cache folder belongs to the process: one test must not choose it for the others.

    Of the scope of fixtures that run commands themselves, or it would come after them.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "keep_compiled_programs", lambda: None)
        yield


@pytest.fixture(scope="session")
def invoke():
    """Runs a command, with any arguments."""
    return lambda *arguments: CliRunner().invoke(cli.app, [str(each) for each in arguments])
