"""What commands write, with markup where a user's words stand."""

SCRIPT = "<script>alert(1)</script>"


def fit_result(**changes):
    levels = [0.25, 0.5, 0.75]
    return {
        "task": "regression",
        "model": "BayesianLinearRegression",
        "target": SCRIPT,
        "num_train": 400,
        "num_test": 100,
        "inputs": ["size", f"town={SCRIPT}"],
        "r2": 0.9,
        "rmse": 1.5,
        "log_likelihood": -2.0,
        "ece": 0.01,
        "reliability": {"expected": levels, "observed": levels, "count": [100] * 3},
    } | changes


def ratings_result(coverage):
    held_out = {"num_ratings": 1_000, "rmse": 0.9, "coverage": {"90%": coverage}}
    held_out |= {"num_users_ranked": 9, "ndcg@1": 0.1, "ndcg@10": 0.2, "ndcg@10_error": 0.01}
    sizes = {"num_users": 10, "num_items": 20, "num_ratings": 10_000, "seconds": 1.0}
    return sizes | {"likelihood": "gaussian", "held_out": held_out}
