"""The task graph: order, failures that stay where they are, and stopping."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpufleet.engine.tasks import TaskGraph, raise_failures
from gpufleet.errors import Interrupted, NodeFailed, StillBilling
from gpufleet.remote.errors import JobFailed


def _raise(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_a_task_starts_after_what_it_waits_for() -> None:
    graph, order = TaskGraph(), []
    graph.add("serve", lambda: order.append("serve"), after=["image", "weights"])
    graph.add("image", lambda: order.append("image"), after=["rent"])
    graph.add("weights", lambda: order.append("weights"), after=["rent"])
    graph.add("rent", lambda: order.append("rent"))
    assert graph.run(threading.Event()) == {}
    assert order[0] == "rent"
    assert order[-1] == "serve"


@pytest.mark.report("dstack 1145")
def test_independent_tasks_run_at_the_same_time() -> None:
    graph, meeting = TaskGraph(), threading.Barrier(2, timeout=10)
    graph.add("a", lambda: meeting.wait() and None)
    graph.add("b", lambda: meeting.wait() and None)
    assert graph.run(threading.Event()) == {}


def test_waiting_for_a_task_that_was_never_added_is_no_wait() -> None:
    graph, ran = TaskGraph(), []
    graph.add("cell", lambda: ran.append("cell"), after=["serve decode/9"])
    assert graph.run(threading.Event()) == {}
    assert ran == ["cell"]


def test_a_failure_stops_its_followers_and_nothing_else() -> None:
    graph, ran = TaskGraph(), []
    graph.add("bad", _raise(NodeFailed("bad")))
    graph.add("follower", lambda: ran.append("follower"), after=["bad"])
    graph.add("other", lambda: ran.append("other"))
    failures = graph.run(threading.Event())
    assert list(failures) == ["bad"]
    assert ran == ["other"]


@pytest.mark.parametrize("before", ["good", "bad", "hopeless"])
def test_what_a_task_merely_waits_out_may_end_in_any_way(before: str) -> None:
    graph, order = TaskGraph(), []
    graph.add("good", lambda: order.append("good"))
    graph.add("bad", _raise(NodeFailed("bad")))
    graph.add("hopeless", lambda: order.append("hopeless"), after=["bad"])
    graph.add("next", lambda: order.append("next"), after=["good"], once_over=[before])
    assert list(graph.run(threading.Event())) == ["bad"]
    assert order == ["good", "next"]


def test_a_task_waits_out_what_still_runs() -> None:
    graph, order, go = TaskGraph(), [], threading.Event()
    graph.add("first", lambda: order.append("first") if go.wait(10) else None)
    graph.add("opener", go.set)
    graph.add("next", lambda: order.append("next"), once_over=["first"])
    assert graph.run(threading.Event()) == {}
    assert order == ["first", "next"]


def test_a_stop_starts_nothing_new_and_says_so() -> None:
    graph, stop, ran = TaskGraph(), threading.Event(), []
    graph.add("first", stop.set)
    graph.add("second", lambda: ran.append("second"), after=["first"])
    with pytest.raises(Interrupted):
        graph.run(stop)
    assert ran == []


def test_a_stop_after_everything_is_done_is_no_interruption() -> None:
    graph, stop = TaskGraph(), threading.Event()
    graph.add("only", stop.set)
    assert graph.run(stop) == {}


def test_one_failure_is_raised_as_it_is() -> None:
    error = NodeFailed("decode/0 died", where="decode/0", hint="gpufleet logs")
    with pytest.raises(NodeFailed) as caught:
        raise_failures({"a": error})
    assert caught.value is error


def test_several_failures_are_told_together_under_the_first_ones_exit_code() -> None:
    with pytest.raises(NodeFailed, match=r"2 failures: decode/0: no GPUs; still billing") as caught:
        raise_failures({"a": JobFailed("no GPUs", where="decode/0"), "b": StillBilling("still billing")})
    assert caught.value.exit_code == NodeFailed.exit_code


def test_what_several_nodes_failed_of_is_told_once() -> None:
    failed = {
        "a": NodeFailed("decode/0: no GPUs", where="decode/0, log /work/jobs/check/log"),
        "b": NodeFailed("is down", where="native/0"),
        "c": NodeFailed("no GPUs", where="decode/1"),
    }
    with pytest.raises(NodeFailed, match=r"^3 failures: decode/0-1: no GPUs; native/0: is down$"):
        raise_failures(dict(failed))


def test_a_programming_error_is_never_hidden_by_a_known_one() -> None:
    with pytest.raises(ZeroDivisionError):
        raise_failures({"a": NodeFailed("x"), "b": ZeroDivisionError()})


def test_two_tasks_of_one_name_are_a_mistake() -> None:
    graph = TaskGraph()
    graph.add("a", lambda: None)
    with pytest.raises(ValueError, match="there already"):
        graph.add("a", lambda: None)
