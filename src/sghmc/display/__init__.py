"""How things look: in a notebook, as a page of HTML, as pictures."""
