"""Graph breaks: where the compiler gave up and Python runs in between."""

from kgverify.audit.report import describe_error, first_line
from kgverify.audit.properties.compiled_run import CompiledRun
from kgverify.audit.properties.notes import Notes
from kgverify.audit.source_lines import definition_line, text_line

AUDIT = "graph-breaks"
_MECHANISM = (
    "what Dynamo cannot trace ends a graph: Python runs it, and another graph begins after it; "
    "nothing is fused or captured across, and a frame that it cannot go on in runs without the compiler"
)


def find_graph_breaks(run: CompiledRun, num_eager_calls: int, notes: Notes) -> None:
    """Every break, with its line; a function of which nothing was compiled; a compilation that failed.

    num_eager_calls: kernels that one call launches without the compiler
    """
    seen: dict[tuple[str, str], str] = {}
    for reason, where in run.breaks:
        seen.setdefault((where, first_line(reason)), reason)
    for each in run.compilations:
        if each.fail_reason and not each.is_past_limit:
            where = each.fail_where or text_line(each.fail_reason) or each.function
            if not any(place == where for place, _ in seen):
                seen[where, first_line(each.fail_reason)] = each.fail_reason
    if run.error is not None:
        _report_error(run, notes)
        for key in [key for key, reason in seen.items() if first_line(str(run.error)) in reason]:
            del seen[key]
    for (where, first), reason in seen.items():
        notes.find(
            AUDIT,
            mechanism=_MECHANISM,
            finding=first or "unknown",
            where=where or definition_line(run.function),
            remedy=_remedy(reason),
        )
    num = len(seen)
    if num == 0 and run.error is None and num_eager_calls > 0 and not any(call.num_runs for call in run.calls):
        notes.find(
            AUDIT,
            mechanism="a frame that Dynamo skips, or is told to leave alone, runs without the compiler and says nothing",
            finding="no compiled graph ran in any call",
            where=definition_line(run.function),
            remedy="look for torch.compiler.disable, a generator, or a function that torch takes for its own",
        )
        num = 1
    notes.measures["graph_breaks"] = num


def _report_error(run: CompiledRun, notes: Notes) -> None:
    error = run.error
    assert error is not None
    place, trace = "", error.__traceback__
    while trace is not None:
        found = text_line(f'File "{trace.tb_frame.f_code.co_filename}", line {trace.tb_lineno}')
        place, trace = found or place, trace.tb_next
    notes.find(
        "compilation",
        mechanism="the compiled function raised where it should have returned",
        finding=describe_error(error),
        where=text_line(str(error)) or place or definition_line(run.function),
        remedy="call it without the compiler; if it returns there, `kgverify audit modes` says which part of it fails",
    )


def _remedy(reason: str) -> str:
    hints = [line.partition("Hint:")[2].strip() for line in reason.splitlines() if "Hint:" in line]
    if "generic_jump" in reason:
        return "a branch on a tensor's value: use torch.where, or decide outside of the step"
    if "Tensor.item" in reason or "aten._local_scalar_dense" in reason:
        return "keep the value on the device as a tensor"
    return hints[0] if hints else "do it outside of the step, or replace it by tensor operations"
