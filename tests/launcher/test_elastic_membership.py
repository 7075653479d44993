"""Who is in the next epoch: single decisions, and ten thousand simulated jobs."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from deep import deep

from mydist.launcher.elastic.membership import (
    BLAME_SECONDS,
    MAX_CAUSELESS,
    MAX_FAILED_STARTS,
    Decision,
    Epoch,
    Offer,
    Settings,
    Slot,
    Stage,
    cooldown_of,
)
from mydist.launcher.elastic.roster import Book, Report


def book_of(slots: int, **settings: object) -> Book:
    """A job on one host, at time 0."""
    chosen = {"min_np": 1, "max_np": slots, **settings}
    book = Book(Settings(**chosen), 0.0)  # type: ignore[arg-type]
    book.offer([Offer("a", slots)])
    return book


def start_all(book: Book, now: float) -> list[int]:
    return [book.start(slot, now) for slot in book.decide(now).start]


def train(book: Book, now: float = 1.0) -> list[int]:
    """Starts a worker in every slot and forms the first epoch."""
    workers = start_all(book, 0.0)
    for worker in workers:
        book.ready(worker, Report(0, -1), now)
    form(book, now)
    return workers


def form(book: Book, now: float) -> Epoch:
    epoch = book.decide(now).form
    assert epoch is not None
    book.apply(epoch, now)
    return epoch


def lose(book: Book, worker: int, now: float, commit: int = 0) -> None:
    """The worker dies, and all other members notice."""
    book.end(worker, now)
    assert book.epoch is not None
    for member in list(book.members.values()):
        if member.stage == Stage.TRAINING:
            book.ready(member.worker, Report(book.epoch.number, commit, lost=True), now)


def test_the_first_epoch_waits_for_all_that_were_started() -> None:
    book = book_of(3)
    first, second, third = start_all(book, 0.0)
    book.ready(third, Report(0, -1), 1.0)
    book.ready(first, Report(0, -1), 1.0)
    assert book.decide(1.0) == Decision()
    book.ready(second, Report(0, -1), 2.0)
    assert book.decide(2.0).form == Epoch(1, (first, second, third), 0, -1)


def test_survivors_keep_their_numbers_and_do_not_wait_for_a_replacement() -> None:
    book = book_of(4)
    workers = train(book)
    lose(book, workers[1], 5.0)
    decision = book.decide(5.0)
    # Rank 3 takes the free number; a replacement starts after the cool-down.
    assert decision.form == Epoch(2, (workers[0], workers[3], workers[2]), 0, 0)
    assert decision.start == ()
    form(book, 5.0)
    assert book.decide(6.0).start == (Slot("a", 1),)


def test_rank_0_may_die_and_the_state_comes_from_the_last_commit() -> None:
    book = book_of(3)
    workers = train(book)
    book.end(workers[0], 5.0)
    book.ready(workers[1], Report(1, 6, lost=True), 5.0)
    book.ready(workers[2], Report(1, 7, lost=True), 5.0)
    assert book.decide(5.0).form == Epoch(2, (workers[2], workers[1]), 0, 7)


def test_a_loss_during_recovery_is_part_of_it() -> None:
    book = book_of(3)
    workers = train(book)
    book.end(workers[0], 5.0)
    book.ready(workers[1], Report(1, 6, lost=True), 5.0)
    assert book.decide(5.0).form is None, "rank 2 has not left the epoch yet"
    book.end(workers[2], 5.1)
    assert book.decide(5.1).form == Epoch(2, (workers[1],), 0, 6)


def test_newcomers_cause_one_new_epoch_together() -> None:
    book = book_of(1, max_np=3)
    (old,) = train(book)
    book.offer([Offer("a", 3)])
    first, second = start_all(book, 5.0)
    book.ready(first, Report(0, -1), 6.0)
    assert not book.decide(6.0).ask, "another one starts"
    assert book.decide(7.0).ask, "which takes long"
    book.ready(second, Report(0, -1), 6.5)
    assert book.decide(6.5).ask
    book.ready(old, Report(1, 9), 6.6)
    assert book.decide(6.6).form == Epoch(2, (old, first, second), 0, 9)


def test_a_host_that_is_taken_away_hands_its_state_over() -> None:
    book = book_of(1)
    (old,) = train(book)
    book.offer([Offer("b", 1)])
    (new,) = start_all(book, 5.0)
    book.ready(new, Report(0, -1), 6.0)
    assert book.decide(6.0).ask
    book.ready(old, Report(1, 3), 6.0)
    assert form(book, 6.0).workers == (old, new), "for a moment one more than --max-np"
    assert book.decide(6.0).ask, "now the new one has the state, too"
    book.ready(old, Report(2, 4), 7.0)
    book.ready(new, Report(2, 4), 7.0)
    assert book.decide(7.0) == Decision(form=Epoch(3, (new,), 0, 4), dismiss=(old,))


def test_too_few_ranks_wait_no_longer_than_the_timeout() -> None:
    book = book_of(2, min_np=2, timeout=60.0, cooldown=(1e3, 1e3))
    workers = train(book)
    lose(book, workers[1], 10.0)
    assert book.decide(69.0) == Decision()
    assert book.decide(71.0).give_up == (
        "1 rank is there, but --min-np is 2; waited 60 s (--elastic-timeout) for more"
    )


def test_the_job_ends_with_the_last_rank_that_has_its_state() -> None:
    book = book_of(2)
    workers = train(book)
    lose(book, workers[0], 5.0, commit=4)
    form(book, 5.0)
    (new,) = start_all(book, 6.0)
    book.ready(new, Report(0, -1), 7.0)
    book.end(workers[1], 8.0)
    assert book.decide(8.0).give_up.startswith("all ranks of epoch 2 are lost")
    # A rank that was lost before it had the state has not got it.
    book = book_of(2)
    workers = train(book)
    lose(book, workers[0], 5.0, commit=4)
    form(book, 5.0)
    (new,) = start_all(book, 6.0)
    book.ready(new, Report(0, -1), 7.0)
    book.ready(workers[1], Report(2, 5), 8.0)
    form(book, 8.0)
    book.end(workers[1], 8.1)
    book.ready(new, Report(3, -1, lost=True), 8.1)
    assert book.decide(8.1).give_up == "all ranks that had the last commit are lost"


def test_a_rank_that_others_have_lost_is_ended() -> None:
    book = book_of(3)
    workers = train(book)
    book.ready(workers[0], Report(1, 3, lost=True, blamed=[2]), 10.0)
    book.ready(workers[1], Report(1, 3, lost=True, blamed=[2]), 10.0)
    assert book.decide(10.0 + BLAME_SECONDS) == Decision()
    ((worker, reason),) = book.decide(10.1 + BLAME_SECONDS).stop
    assert worker == workers[2]
    assert "did not answer" in reason


def test_a_slot_rests_longer_after_each_loss() -> None:
    settings = Settings(1, 1, cooldown=(0.5, 60.0))
    assert [cooldown_of(n, settings) for n in (1, 2, 3, 8, 9, 99)] == [0.5, 1, 2, 60, 60, 60]


def test_a_host_is_given_up_when_its_workers_never_join() -> None:
    book = book_of(1, max_np=2)
    train(book)
    book.offer([Offer("a", 1), Offer("b", 1)])
    now = 5.0
    for _ in range(MAX_FAILED_STARTS):
        assert book.given_up == {}
        (worker,) = start_all(book, now)
        book.end(worker, now)
        now += 100.0
    assert list(book.given_up) == ["b"]
    assert book.decide(now) == Decision()


def test_ranks_that_fail_again_and_again_end_the_job() -> None:
    book = book_of(1)
    (worker,) = train(book)
    for n in range(MAX_CAUSELESS):
        book.ready(worker, Report(n + 1, 0, lost=True), float(n))
        form(book, float(n))
    book.ready(worker, Report(MAX_CAUSELESS + 1, 0, lost=True), 99.0)
    assert "although none of them ended" in book.decide(99.0).give_up


def test_the_reset_limit_counts_epochs_after_the_first() -> None:
    book = book_of(3, reset_limit=1)
    workers = train(book)
    lose(book, workers[0], 5.0)
    form(book, 5.0)
    lose(book, workers[1], 6.0)
    assert book.decide(6.0).give_up == "--reset-limit 1 is reached"


def test_nobody_starts_once_a_rank_is_done() -> None:
    book = book_of(3)
    workers = train(book)
    book.end(workers[0], 5.0)
    book.finish()
    book.ready(workers[1], Report(1, 4, lost=True), 5.0)
    assert book.decide(99.0) == Decision(dismiss=(workers[1],))


# --- simulated jobs ---------------------------------------------------------------------------


@dataclass
class Simulation:
    """A job whose hosts and ranks fail at random until FAULTS_END; then all hosts are there."""

    chance: random.Random
    now: float = 0.0
    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    hung: set[int] = field(default_factory=set)
    commits: dict[int, int] = field(default_factory=dict)
    asked: int = 0
    over: str = ""
    forms: int = 0
    planned: int = 0

    FAULTS_END = 20.0
    END = 400.0

    def __post_init__(self) -> None:
        chance = self.chance
        self.hosts = [Offer(host, chance.randint(1, 2)) for host in "abc"[: chance.randint(2, 3)]]
        slots = sum(offer.slots for offer in self.hosts)
        least = chance.randint(1, min(2, slots))
        most = chance.randint(least, slots + 1)
        settings = Settings(least, most, timeout=100.0, cooldown=(chance.choice((0.5, 4.0)), 30.0))
        self.book = Book(settings, 0.0)
        self.book.offer(self.hosts)
        for _ in range(chance.randint(1, 4)):
            self.plan(chance.uniform(0.0, self.FAULTS_END), "fault")
        self.plan(self.FAULTS_END, "recover")

    def plan(self, at: float, kind: str, worker: int = -1) -> None:
        """What members do holds for the epoch that they are in now."""
        epoch = self.forms if kind in ("meet", "notice") else -1
        self.planned += 1
        heapq.heappush(self.events, (at, self.planned, kind, worker, epoch))

    def soon(self, kind: str, worker: int, most: float) -> None:
        self.plan(self.now + self.chance.uniform(0.01, most), kind, worker)

    def run(self) -> None:
        self.act()
        while not self.over and self.now < self.END:
            if self.now > self.FAULTS_END and self.is_settled():
                return
            tick = self.now + 5.0  # mydistrun looks more often, but nothing depends on it.
            if self.events and self.events[0][0] <= tick:
                self.now, _, kind, worker, epoch = heapq.heappop(self.events)
                if epoch in (-1, self.forms):
                    getattr(self, kind)(worker)
            else:
                self.now = tick
            self.act()
        assert self.over, f"no end and no progress: {self.book}"

    def is_settled(self) -> bool:
        members = self.book.members.values()
        slots = sum(o.slots for o in self.hosts if o.host not in self.book.given_up)
        is_full = len(members) == min(slots, self.book.settings.max_np)
        return is_full and all(m.stage == Stage.TRAINING for m in members)

    def act(self) -> None:
        for _ in range(20):
            decision = self.book.decide(self.now)
            for slot in decision.start:
                self.soon("arrive", self.book.start(slot, self.now), 3.0)
            for worker, _ in decision.stop:
                self.die(worker)
            for worker in decision.dismiss:
                self.book.end(worker, self.now, counts=False)
            if decision.give_up:
                self.over = decision.give_up
                self.check_end()
                return
            if decision.ask:
                self.ask()
            if decision.form is None:
                return
            self.form(decision.form)
        raise AssertionError("decisions without an end")

    def form(self, epoch: Epoch) -> None:
        book = self.book
        before = book.epoch
        assert epoch.number == (before.number if before else 0) + 1
        assert len(set(epoch.workers)) == len(epoch.workers)
        members = [book.members[worker] for worker in epoch.workers]
        offered = {Slot(o.host, number) for o in book.offers for number in range(o.slots)}
        spare = int(any(m.slot not in offered for m in members))
        assert book.settings.min_np <= len(members) <= book.settings.max_np + spare
        # Nobody is left behind in an older epoch, so no two epochs can commit.
        assert all(m.stage != Stage.TRAINING for m in book.members.values())
        assert epoch.commit == max(m.commit for m in members) == members[epoch.root].commit
        assert epoch.commit >= (before.commit if before else -1)
        for rank, m in enumerate(members):
            assert m.rank < 0 or m.rank == rank or m.rank >= len(members) or before is None
        book.apply(epoch, self.now)
        self.forms += 1
        for worker in epoch.workers:
            # Some lose another one before they have the state.
            if self.chance.random() < 0.95 or worker == epoch.workers[epoch.root]:
                self.commits[worker] = epoch.commit + self.chance.randint(1, 3)

    def ask(self) -> None:
        assert self.book.epoch is not None
        if self.asked != self.book.epoch.number:
            self.asked = self.book.epoch.number
            for worker in self.book.epoch.workers:
                self.soon("meet", worker, 1.0)

    # Events

    def arrive(self, worker: int) -> None:
        if worker in self.book.members:
            self.book.ready(worker, Report(0, -1), self.now)

    def meet(self, worker: int, blamed: int = -1, lost: bool = False) -> None:
        """The worker leaves the epoch."""
        member = self.book.members.get(worker)
        if member is None or member.stage != Stage.TRAINING or worker in self.hung:
            return
        assert self.book.epoch is not None
        if not lost:  # All meet at one commit.
            self.commits[worker] = self.book.epoch.commit + 3
        report = Report(self.book.epoch.number, self.commits.get(worker, -1), lost, [blamed])
        self.book.ready(worker, report, self.now)

    def notice(self, worker: int) -> None:
        hung = [m.rank for m in self.book.members.values() if m.worker in self.hung]
        self.meet(worker, hung[0] if hung else -1, lost=True)

    def fault(self, _: int) -> None:
        chance = self.chance
        kind = chance.random()
        if kind < 0.3:
            self.book.offer([o for o in self.hosts if chance.random() < 0.6])
        elif self.book.members:
            living = sorted(self.book.members)
            for worker in chance.sample(living, min(len(living), chance.randint(1, 2))):
                if kind < 0.45 and self.may_hang(worker):
                    self.hung.add(worker)
                    self.others_notice(worker)
                else:
                    self.die(worker)

    def may_hang(self, worker: int) -> bool:
        """Where all of an epoch are stopped, nobody can know whether they are at work."""
        training = {m.worker for m in self.book.members.values() if m.stage == Stage.TRAINING}
        return worker in training and bool(training - self.hung - {worker})

    def die(self, worker: int) -> None:
        if self.book.end(worker, self.now) is not None:
            self.others_notice(worker)

    def others_notice(self, worker: int) -> None:
        for member in self.book.members.values():
            if member.stage == Stage.TRAINING and member.worker != worker:
                self.soon("notice", member.worker, 0.5)

    def recover(self, _: int) -> None:
        self.book.offer(self.hosts)

    def check_end(self) -> None:
        members = self.book.members.values()
        holders = [m for m in members if self.commits.get(m.worker, -1) >= 0]
        if self.over.startswith("all ranks"):
            assert self.book.epoch is not None
            assert all(
                self.commits.get(m.worker, -1) < self.book.epoch.commit or m.rank < 0
                for m in members
            ), holders
        elif "--min-np" in self.over:
            assert len(members) < self.book.settings.min_np or self.book.given_up
        else:
            raise AssertionError(self.over)


@pytest.mark.parametrize("seeds", [range(10_000), deep(range(10_000, 100_000))], ids=str)
def test_simulated_jobs(seeds: range) -> None:
    ends: dict[str, int] = {}
    for seed in seeds:
        simulation = Simulation(random.Random(seed))
        try:
            simulation.run()
        except BaseException:
            print(f"seed {seed}")
            raise
        key = simulation.over[:20]
        ends[key] = ends.get(key, 0) + 1
    # Most jobs go on, and some lose all ranks at once.
    assert ends[""] > len(seeds) / 2, ends
    assert len(ends) > 1, ends
