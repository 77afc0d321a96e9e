"""Programs that compare.py starts: they end in time, and say in a line why they failed. Standard library only."""
import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import threading


def say(text):
    print(text, file=sys.stderr, flush=True)


def kill_tree(pid):
    """A process and those below it, which mpirun and torchrun put into sessions of their own."""
    children = []
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGSTOP)  # no more children
        for path in glob.glob(f"/proc/{pid}/task/*/children"):
            with open(path) as f:
                children += [int(child) for child in f.read().split()]
        os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_tree(child)


def reason(code, said):
    """Why a program failed, in its own words where it has some. Those that start ranks tell of a signal in theirs, or end as
    shells do."""
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL) or re.search(r"signal 9 \(", "".join(said), re.I):
        return "killed (out of memory?)"
    errors = [line for line in said if re.search(r"Error\b.*: ", line) and "ChildFailedError" not in line]
    return "".join(errors[-1:] or said[-3:]).strip().replace("\n", " ")[-200:] or f"exit status {code}"


def run(name, command, env, folder, limit, hear):
    """Hands each line of a program's output to hear(). Returns why it failed, or nothing."""
    say(f"  {name}: {' '.join(command)}")
    p = subprocess.Popen(command, env={**os.environ, **env}, cwd=folder, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    late, said = threading.Event(), []

    def end():
        late.set()
        kill_tree(p.pid)

    timer = threading.Timer(limit, end)
    timer.start()
    try:
        for line in p.stdout:
            said.append(line)
            hear(line)
        code = p.wait()
    finally:
        timer.cancel()
    failure = f"not done after {limit:g} s" if late.is_set() else reason(code, said) if code else ""
    if failure:
        say(f"  {name} failed: {failure}")
    return failure


def self_test():
    def shell(script, limit=60):
        said = []
        return run("test", ["sh", "-c", script], {"WORD": "heard"}, "/", limit, said.append), said

    assert shell("echo $WORD") == ("", ["heard\n"])
    assert shell("exit 3") == ("exit status 3", [])
    assert shell("echo 'ValueError: no such thing'; echo; echo ====; echo; exit 1")[0] == "ValueError: no such thing"
    for script in ("kill -9 $$", "sh -c 'kill -9 $$'; exit $?"):
        assert shell(script)[0] == "killed (out of memory?)"
    assert shell("echo 'traceback : Signal 9 (SIGKILL) received by PID 7'; exit 1")[0] == "killed (out of memory?)"
    # What it has started holds the pipe open, in a session of its own.
    assert shell("setsid sleep 50 & wait", limit=0.3)[0] == "not done after 0.3 s"
