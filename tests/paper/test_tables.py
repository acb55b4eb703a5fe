from sghmc.paper import table
from shown_tables import cells, fits


def test_words_stand_left_and_numbers_right():
    shown = table("A title", ("name", "x", "y"), [("a", "1", "2"), ("b", "3", "4")])
    assert [column.justify for column in shown.columns] == ["left", "right", "right"]
    assert [column.header for column in shown.columns] == ["name", "x", "y"]
    assert cells(shown) == [["a", "1", "2"], ["b", "3", "4"]]
    assert shown.title == "A title"
    assert fits(table("A title", ("name", "x"), [("a", "1"), ("b", "2")]))
    assert not fits(table("A title", ("name",), [("long " * 30,)]))
