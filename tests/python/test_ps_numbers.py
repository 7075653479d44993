"""The numbers of tables: ranks that know nothing of each other give none twice."""

from __future__ import annotations

from itertools import islice

import pytest

from mydist.ps.job_servers import JobServers, numbers_of

MOST = 2**32 - 2


def test_no_number_is_given_twice_in_a_job_or_in_the_next_one() -> None:
    last, seen = 0, set[int]()
    for size in (5, 2, 7):  # Of jobs one after the other, on the same servers.
        given = [list(islice(numbers_of(rank, size, last), 1000)) for rank in range(size)]
        numbers = [number for of_rank in given for number in of_rank]
        assert len({*numbers} - seen) == 1000 * size
        seen.update(numbers)
        last = max(numbers)
    assert min(seen) > 0


def test_numbers_end_where_a_frame_has_no_room_for_them() -> None:
    servers = JobServers(None, None, numbers_of(3, 4, MOST - 4))  # type: ignore[arg-type]
    assert servers.take_number(next(servers.numbers), "Table 'last'") == MOST
    with pytest.raises(ValueError, match="^Table 'more': the numbers of tables, up to 4294967294"):
        servers.take_number(next(servers.numbers), "Table 'more'")
