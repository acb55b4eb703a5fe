"""Local learning coefficient: how many directions a trained model really uses."""
