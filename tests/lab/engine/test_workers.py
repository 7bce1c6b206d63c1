"""Processes that answer requests: one line of JSON for each, and failures in words."""

from __future__ import annotations

import sys

import pytest

from bayescore_lab.engine.workers import RequestError, Worker, WorkerError, WorkerSilentError, ask_once

SCRIPTS = {
    "silent": ("import time; time.sleep(60)", "no answer within"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "when memory runs out"),
    "crashed": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "ended": ("import sys; sys.exit('no such thing')", "exit code 1: no such thing"),
    "full": ('input(); print(\'{"error": "out of memory: 9 GB"}\', flush=True)', "out of memory: 9 GB"),
}


@pytest.mark.parametrize(("script", "words"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_worker_that_ends_is_described(script, words):
    with (
        Worker((sys.executable, "-c", script), patience=1.0 if "sleep" in script else 30.0) as worker,
        pytest.raises(WorkerError, match=words),
    ):
        worker.ask(do="build")


def test_what_a_request_raises_is_not_the_end_of_the_worker():
    script = 'for _ in range(2): input(); print(\'{"error": "TypeError: no"}\', flush=True)'
    with Worker((sys.executable, "-c", script), 30.0) as worker:
        for _ in range(2):
            with pytest.raises(RequestError, match="TypeError: no"):
                worker.ask(do="turn")


def test_silence_has_an_error_of_its_own():
    with (
        Worker((sys.executable, "-c", "import time; time.sleep(60)"), patience=0.5) as worker,
        pytest.raises(WorkerSilentError, match=r"no answer within 0\.5 s"),
    ):
        worker.ask(do="build")


def test_what_a_process_prints_does_not_mix_with_its_answers():
    script = """
from bayescore_lab.engine.workers import answer_requests

def answer(request):
    print("a library chats")
    return {"twice": 2 * request["x"], "nothing": float("nan")}

def prepare():
    print("and chats when it is imported")
    return answer

answer_requests(prepare)
"""
    with Worker((sys.executable, "-c", script), 60.0) as worker:
        for x in (0.1, 1e300):
            answer = worker.ask(x=x)
            assert answer["twice"] == 2 * x
            assert answer["nothing"] != answer["nothing"]


ECHO = """
import json, os, sys
request = json.loads(sys.argv[1])
print("something else first")
if "code" in request:
    sys.exit(request["code"])
print(json.dumps({**request, "threads": os.environ["OMP_NUM_THREADS"]}))
"""


def test_a_process_of_one_request_answers_with_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "echo_request.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = ask_once("echo_request", {"x": 1})
    assert (done.code, done.answer) == (0, {"x": 1, "threads": "1"})
    done = ask_once("echo_request", {"code": 3})
    assert (done.code, done.answer) == (3, None)
    done = ask_once("echo_request", {"code": "it is broken"})
    assert (done.code, done.answer, done.errors) == (1, None, "it is broken")
