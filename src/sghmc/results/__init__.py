"""Results of a run: draws, diagnostics, the verdict on them, and reports."""
