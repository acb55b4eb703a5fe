import dataclasses

from sghmc.results.health import Verdict


@dataclasses.dataclass(frozen=True, repr=False)
class Finding(Verdict):
    reasons: tuple[str, ...]

    @property
    def evidence(self):
        return {"largest R-hat": "1.010", "smallest <size>": "400"}


def test_what_has_no_fault_is_sound():
    sound = Finding(())
    assert sound.is_sound
    assert str(sound) == "verdict: no sign of trouble\nlargest R-hat: 1.010\nsmallest <size>: 400"
    assert "smallest &lt;size&gt;" in sound._repr_html_()


def test_every_fault_is_told_in_lines_of_a_terminal():
    broken = Finding(("chains disagree: draw more", "too hot: " + "smaller steps " * 9))
    assert not broken.is_sound
    assert broken.verdict.startswith("chains disagree: draw more; too hot")
    assert max(map(len, repr(broken).splitlines())) <= 80
