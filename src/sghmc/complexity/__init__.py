"""How many directions a trained model really uses."""
