"""Whether a run went as it should. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from faults.catalogue import Act, Fault, Phase, Plane
from faults.run import Run


def times_to_report(fault: Fault, run: Run) -> list[float]:
    """Seconds by survivor; where the settings have a wait, what a report came later than that.

    In a collective the wait begins with the fault or, if that is later, with the collective.
    Between collectives a survivor waits since it has submitted its tensor.
    """
    if fault.act is Act.KILL_LAUNCHER:
        return [run.ended_at - run.struck_at]
    times = []
    for rank in sorted(run.reports):
        report = run.reports[rank]
        begun = run.struck_at
        if fault.after_s > 0:
            is_between = fault.phase is Phase.BETWEEN
            begun = report["since"] if is_between else max(begun, report["since"])
        times.append(report["at"] - begun - fault.after_s)
    return times


def time_to_end(run: Run) -> float:
    """Seconds from the fault to the end of the job."""
    return run.ended_at - run.struck_at


def problems_of(fault: Fault, plane: Plane, run: Run) -> list[str]:
    """One text for each thing that is not as it should be."""
    pid = run.ready[fault.victim]["pid"]
    found = [f"left behind: {thing}" for thing in run.left]
    freezes = plane.freezes and fault.collective.freezes
    if any(row["frozen"] != freezes for row in run.ready.values()):
        found.append(f"the schedule was{' not' if freezes else ''} frozen")
    for rank in fault.survivors:
        if rank not in run.reports:
            ends = fault.act in (Act.KILL, Act.SEGV) or fault.failpoint.endswith(":exit")
            is_ended = plane.ends_survivors and ends
            if not (is_ended or fault.may_stay_silent):
                found.append(f"rank {rank} reported nothing")
            continue
        problems = _problems_of_report(fault, plane, pid, rank, run.reports[rank])
        found += [f"rank {rank}: {problem}: {run.reports[rank]['text']}" for problem in problems]
    # Where mpirun has ended all survivors before they knew, no process tells the pid.
    knows_pid = run.reports or not plane.ends_survivors
    return found + list(_problems_of_job(fault, str(pid) if knows_pid else "", run))


def _problems_of_report(
    fault: Fault, plane: Plane, pid: int, rank: int, report: Mapping[str, Any]
) -> Iterator[str]:
    host = plane.host_of(fault.victim)
    quoted = fault.collective.quoted_tensor
    call = f"{fault.collective.operation} {quoted}".rstrip()
    for text in (f"rank {fault.victim} (host {host}, pid {pid})", call):
        if text not in report["text"]:
            yield f"does not name {text}"
    if not fault.errors:
        return
    if report["error"] not in fault.errors:
        yield f"{report['error']}, expected {' or '.join(fault.errors)}"
    if fault.point is not None and fault.act is Act.RAISE:
        cause = f"failpoint {fault.point.value}"
        if cause not in report["text"]:
            yield f"does not name the cause, {cause}"
    known = report["failure"]
    # The data may name the rank that tells of the victim as well, and have no one process then.
    if fault.victim not in known["ranks"]:
        yield f"failure['ranks'] is {known['ranks']}, without {fault.victim}"
    true = {"host": host, "pid": pid, "operation": fault.collective.operation}
    if not f"'{known['tensor']}'".startswith(quoted):
        yield f"failure['tensor'] is {known['tensor']!r}"
    if fault.act in (Act.KILL, Act.SEGV) and plane.knows_end(rank, fault.victim):
        number = signal.Signals[fault.act.value]
        true["signal"] = int(number)
        if f"{number.name} (signal {number})" not in report["text"]:
            yield f"does not name {number.name} (signal {number})"
    for name, value in true.items():
        if known[name] != value and (known[name] or known["ranks"] == [fault.victim]):
            yield f"failure[{name!r}] is {known[name]!r}, expected {value!r}"


def _problems_of_job(fault: Fault, pid: str, run: Run) -> Iterator[str]:
    if run.code is None:
        yield f"the job did not end by itself:\n{run.output[-3000:]}"
    elif run.code != fault.code if fault.code is not None else run.code == 0:
        expected = "another one" if fault.code is None else str(fault.code)
        yield f"exit code {run.code}, expected {expected}:\n{run.output[-3000:]}"
    report = run.output[run.output.find("mydistrun: ") :]
    says = fault.says.replace("{victim}", str(fault.victim))
    says = says.replace("{pid}", pid) if pid else says.replace(r"\(pid {pid}\) ", "")
    if not re.search(says, report, re.MULTILINE):
        yield f"mydistrun's report does not say {says!r}:\n{report[-3000:]}"
