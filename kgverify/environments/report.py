"""The report of a comparison of two environments."""

from pathlib import Path

from kgverify.environments.content import EnvironmentContent
from kgverify.environments.render import print_report, render_html
from kgverify.files.writing import write_file
from kgverify.report.render.terminal import draw_text
from kgverify.report.report import encode_report


class EnvironmentReport(
    EnvironmentContent, frozen=True, kw_only=True, tag_field="format", tag="kgverify environments 1"
):
    """The result of comparing two environments that took the same actions, or two computations of an update.

    divergences: the first difference of each slot, in the order of slots; in lockstep, each step that differs. Its `candidate`
                 is the slot, and its `step` the number of the action in it; 0 for the first observation
    causes:      the divergences grouped, with the condition of each
    near_ties:   the steps whose end a last place of the state decides; they are not divergences
    reasons:     the reasons for the verdict INCONCLUSIVE
    rounding:    in words, how many numbers differ by rounding, and the bound
    lockstep:    whether each step was taken from the expected state
    slots, steps, seed: what was driven: the slots, the actions of each, and the seed of the first slot
    windows:     the rows around the first divergences
    self_test:   the changes planted before the verdict was given, all of which the comparison reported
    shrunk:      the smallest comparison found that shows the first divergence; None if none was sought

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify_env("gymnasium:CartPole-v1", "gymnasium:CartPole-v1", slots=2, steps=60)
        >>> print(str(report).splitlines()[0])
        AGREE   gymnasium:CartPole-v1 against gymnasium:CartPole-v1
        >>> report.to_html("report.html").stat().st_size > 1000
        True
    """

    def to_json(self, path: str | Path) -> Path:
        """Write the report as JSON.

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written.
        """
        write_file(path, encode_report(self))
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page.

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written.
        """
        write_file(path, render_html(self))
        return Path(path)

    def __str__(self) -> str:
        """Return the report as the terminal shows it, 120 columns wide."""
        return draw_text(lambda console: print_report(self, console))
