"""How pages are looked at."""

import os
import pathlib

SITE = pathlib.Path(os.environ.get("SITE", "results/site")).absolute()
PHONE, DESK = 390, 1280
