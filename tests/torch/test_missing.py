"""Where PyTorch is missing, `import sghmc.torch` says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_extra_is_named():
    code = "import sys; sys.modules['torch'] = None; import sghmc.torch"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "This needs torch, which is not installed: pip install 'sghmc-jax[torch]'." in run.stderr
