"""Log reports to MLflow: `python mlflow_logger.py`, then `mlflow ui`."""

import mlflow

import kgverify as kv


def log_to_mlflow(report: kv.Report, name: str) -> str:
    """Log a report as one run of MLflow, and return the id of the run."""
    with mlflow.start_run(run_name=name) as run:
        mlflow.set_tag("verdict", report.verdict.value)
        mlflow.log_params(
            {"graph": report.run.graph, "seed": report.run.seed, "engine": report.environment.actual.name}
        )
        mlflow.log_metric("divergences", len(report.divergences))
        for role in ("expected", "actual"):
            ranks = getattr(report.metrics, role)
            mlflow.log_metrics({f"{role}.{key}": value for key, value in ranks.items() if value is not None})
        mlflow.log_text(str(report), "report.txt")
        mlflow.log_artifact(str(report.to_html("report.html")))
        return run.info.run_id


def log_divergence(found: kv.WatchedDivergence) -> None:
    """Log the divergences of a watched engine to the current run: `kv.watch(engine, on_divergence=log_divergence)`."""
    mlflow.log_metric(f"divergences.{found.stage or 'unknown'}", found.num, step=found.call)
    if found.run is not None:
        mlflow.log_artifacts(str(found.run), artifact_path=found.run.name)


if __name__ == "__main__":
    for fault in ("", "fact-cap"):
        report = kv.verify("countries", kv.Evaluator(mode="eager", faults=fault or ()), queries=2, corruptions=5)
        print(log_to_mlflow(report, fault or "no fault"), report.verdict.value)
