"""Other libraries' models in, our samplers out. Each library is imported by its own file only."""
