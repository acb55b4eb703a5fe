"""How ratings come about, given their pair's mean: one file a likelihood."""
