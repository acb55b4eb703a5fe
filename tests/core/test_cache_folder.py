import os
import pathlib
import subprocess
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from sghmc.core.files import cache, cache_folder


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", "home/.cache"), ("darwin", "home/Library/Caches"), ("win32", "local")],
)
def test_where_the_platform_keeps_caches(monkeypatch, platform, expected):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "local")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(pathlib.Path, "home", lambda: pathlib.Path("home"))
    assert cache_folder() == pathlib.Path(expected) / "sghmc"
    monkeypatch.setenv("XDG_CACHE_HOME", "chosen")
    assert cache_folder() == pathlib.Path("chosen") / "sghmc"


SCRIPT = """
import sys
import jax, jax.numpy as jnp
from jax import monitoring
import sghmc

events = []
monitoring.register_event_listener(lambda event, **_: events.append(event))
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.jit(lambda x: x + 1)(1.0)  # a process may have compiled before, and for a folder of its own
sghmc.cache(sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
events.clear()
target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
samples = sghmc.sample(
    jax.random.key(0), target, sghmc.SGHMC(0.1, 1.0), jnp.zeros(3), num_samples=5, progress=False
)
kinds = [event.rsplit("/", 1)[1] for event in events]
print(kinds.count("cache_hits"), kinds.count("cache_misses"), float(samples.positions.sum()))
"""


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        cache(tmp_path / "file" / "below")


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    def run(before):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "programs"), str(tmp_path / before)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout.split()

    first, second = run("one"), run("another")
    assert first[0] == "0"
    assert int(first[1]) > 0
    assert int(second[0]) > 0
    assert second[1] == "0"
    assert first[2] == second[2]


@pytest.fixture
def settings(monkeypatch):
    """What jax was told, by name; nothing of it is changed."""
    told, reset = {}, []
    monkeypatch.setattr(
        type(jax.config), "update", lambda self, name, value: told.update({name: value})
    )
    known = property(lambda self: {"jax_compilation_cache_dir": None} | told)
    monkeypatch.setattr(type(jax.config), "values", known)
    monkeypatch.setattr(compilation_cache, "reset_cache", lambda: reset.append(1))
    return told, reset


def test_jax_is_told_the_folder_and_what_is_worth_a_file(settings, tmp_path, monkeypatch):
    told, reset = settings
    assert cache(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    assert told == {
        "jax_compilation_cache_dir": str(tmp_path / "a" / "b"),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    assert reset == [1]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache() == tmp_path / "a" / "b"  # as jax was told
    told.clear()
    assert cache() == tmp_path / "home" / "sghmc" / f"jax-{jax.__version__}"


def test_a_folder_that_cannot_be_written_to_is_refused(settings, tmp_path, monkeypatch):
    asked = []

    def access(folder, mode):
        asked.append((folder, mode))
        return False

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(PermissionError, match="it is read-only"):
        cache(tmp_path)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    assert settings[0] == {}
