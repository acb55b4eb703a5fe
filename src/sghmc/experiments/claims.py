"""What the paper says in words or numbers, next to what came out here."""

from typing import NamedTuple


class Claim(NamedTuple):
    """`agrees` is None where this run cannot tell."""

    paper: str
    here: str
    agrees: bool | None
