"""Log reports to Weights & Biases: `WANDB_MODE=offline python wandb_logger.py`, then `wandb sync`."""

import wandb

import kgverify as kv


def log_to_wandb(report: kv.Report, name: str) -> str:
    """Log a report as one run of W&B, and return the folder of the run."""
    config = {"graph": report.run.graph, "seed": report.run.seed, "engine": report.environment.actual.name}
    with wandb.init(project="kgverify", name=name, config=config) as run:
        run.summary["verdict"] = report.verdict.value
        run.summary["divergences"] = len(report.divergences)
        for role in ("expected", "actual"):
            run.log({f"{role}/{key}": value for key, value in getattr(report.metrics, role).items()}, step=0)
        causes = [[c.stage, c.kind.value, c.num_divergences] for c in report.causes]
        run.log({"causes": wandb.Table(columns=["stage", "difference", "divergences"], data=causes)}, step=0)
        run.save(report.to_html("report.html"), policy="now")
        return run.dir


def log_divergence(found: kv.WatchedDivergence) -> None:
    """Log the divergences of a watched engine to the current run: `kv.watch(engine, on_divergence=log_divergence)`."""
    wandb.log({f"divergences/{found.stage or 'unknown'}": found.num})
    if found.run is not None:
        wandb.save(str(found.run / "*"), policy="now")


if __name__ == "__main__":
    for fault in ("", "fact-cap"):
        report = kv.verify("countries", kv.Evaluator(mode="eager", faults=fault or ()), queries=2, corruptions=5)
        print(log_to_wandb(report, fault or "no fault"), report.verdict.value)
