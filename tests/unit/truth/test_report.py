from tests.truth.report import Difference, Report
from tests.truth.situations import Situation


def complete() -> Report:
    """A report of one good turn in each situation."""
    report = Report()
    for one in Situation:
        report.agreed(one, near_tie=False)
        report.spent(one, reused=10, recomputed=5)
    return report


def test_a_run_without_differences_has_no_failures() -> None:
    """Its figures are sums over situations."""
    report = complete()
    report.agreed(Situation.NEXT, near_tie=True)

    document = report.document({"seed": 3})

    assert report.failures() == []
    assert (document["turns"], document["equal"], document["near_ties"]) == (11, 11, 1)
    assert (document["reused_tokens"], document["recomputed_tokens"]) == (100, 50)
    assert document["by_situation"]["next"]["turns"] == 2
    assert document["seed"] == 3


def test_a_difference_is_a_failure_and_says_where() -> None:
    """The turn is named, with the first token that differs."""
    report = complete()
    report.differed(
        Difference(
            turn=7,
            situation=Situation.EDITED,
            conversation=2,
            strategy="pull",
            prompt=[1] * 300,
            answer=[5, 6, 7],
            expected=[5, 8, 7],
        )
    )

    (failure,) = report.failures()

    assert failure.startswith("turn 7 (edited, pull) of conversation 2: 300 prompt tokens")
    assert "from token 1 on" in failure
    assert (report.total.turns, report.total.equal) == (11, 10)


def test_a_run_that_shows_nothing_has_failed() -> None:
    """A situation that did not come up, and turns that reused nothing, are failures."""
    report = Report()
    report.agreed(Situation.NEXT, near_tie=False)

    missing, nothing = report.failures()

    assert "reclaimed" in missing
    assert "restarted" in missing
    assert nothing == "plain next turns reused nothing"
