"""Write the known answers again, after a change of what reports say: PYTHONPATH=tests python tests/judge/write_known_answers.py

The second comparison still checks each of them. Review the difference as you would review a golden file.
"""

import sys
from pathlib import Path

import known_alterations
import known_explanations
import known_reports
import msgspec
from judge_answers import answers as known_answers
from judge_answers.conditions import known_condition_answers
from judge_answers.files import known_file_answers
from judge_answers.pairs import pair_of
from judge_answers.runs import known_run_answers, traces_of_runs
from judge_answers.stages import known_stage_answers
from known_judge import exercise_known, judge_known

from kgverify.verification.verify import verify


def main() -> int:
    answers = dict(known_answers.unexplained_answers(exercise_known))
    answers |= dict(known_answers.known_answers(judge_known, is_recorded=True))
    answers |= dict(known_file_answers(judge_known))
    answers |= dict(known_run_answers(verify))
    answers |= dict(known_stage_answers(pair_of((0,))[0]))
    answers |= dict(known_condition_answers(verify))
    for known in traces_of_runs():
        answers[known.name] = known_answers.answer_of(judge_known(known.expected, known.actual)[1])
    path = Path(known_answers.__file__).with_name(known_answers.ANSWERS)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(answers), indent=1) + b"\n")
    reports = {
        name: known_reports.answer_to(name)
        for kind in known_reports.KINDS
        for name in known_reports.find_differing(kind)
    }
    for path, known in (
        (known_reports.PATH, reports),
        (known_alterations.PATH, known_alterations.known_alterations()),
        (known_explanations.PATH, known_explanations.known_explanations()),
    ):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
