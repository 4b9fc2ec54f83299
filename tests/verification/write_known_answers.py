"""Write the known answers again, after a change of what reports say: python tests/verification/write_known_answers.py

The second comparison still checks each of them. Review the difference as you would review a golden file.
"""

import sys
from pathlib import Path

import msgspec

from kgverify.engines.reference.comparison import compare_again
from kgverify.verification.self_testing.known_answers import answers as known_answers
from kgverify.verification.self_testing.known_answers.files import known_file_answers
from kgverify.verification.self_testing.known_answers.pairs import pair_of
from kgverify.verification.self_testing.known_answers.runs import known_run_answers, traces_of_runs
from kgverify.verification.self_testing.known_answers.stages import known_stage_answers
from kgverify.verification.self_testing.second_opinion import can_be_checked, check_by_second
from kgverify.verification.verify import _judge_known, verify


def main() -> int:
    answers = {}
    for known in known_answers.known_pairs(is_recorded=True):
        comparer, report = _judge_known(known.expected, known.actual, **known.options)
        if can_be_checked(comparer):
            second = compare_again(known.expected, known.actual, comparer.score_tolerance, lockstep=comparer.lockstep)
            check_by_second(comparer.comparison, second, known.name)
        answers[known.name] = known_answers.answer_of(report)
        if "--show" in sys.argv:
            print(known.name, report)
    answers |= dict(known_file_answers(_judge_known))
    answers |= dict(known_run_answers(verify))
    answers |= dict(known_stage_answers(pair_of((0,))[0]))
    for known in traces_of_runs():
        answers[known.name] = known_answers.answer_of(_judge_known(known.expected, known.actual)[1])
    path = Path(known_answers.__file__).with_name(known_answers.ANSWERS)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(answers), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
