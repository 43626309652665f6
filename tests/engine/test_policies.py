"""The order of the waiting: fcfs, priority with ageing, and fair shares of tenants."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from tests.engine.driver import Driver, config, request

from octavo.engine.block_table import BlockTable
from octavo.engine.pages import PagePool
from octavo.engine.policies import FairQueue, RankQueue, WaitingQueue, make_queue, rank_of
from octavo.engine.sequence import Family, Sequence

POOL = PagePool(1, 4)


def waiting(
    serial: int, arrival_s: float = 0.0, priority: int = 0, tenant: str = "", policy: str = "fcfs", ageing_s: float = 30
) -> Sequence:
    asked = request(serial, 1, arrival_s=arrival_s, priority=priority, salt=(("tenant", tenant),))
    return Sequence(
        request=asked,
        choice=0,
        family=Family(),
        rank=rank_of(policy, asked, serial, ageing_s),
        tokens=asked.prompt,
        table=BlockTable(POOL),
        limit=5,
        min_tokens_at=0,
        stop_ids=frozenset(),
    )


def order(queue: WaitingQueue) -> list[int]:
    popped = []
    while (sequence := queue.pop()) is not None:
        popped.append(sequence.request.request_id)
    assert len(queue) == 0
    return popped


def test_fcfs_is_by_arrival_whatever_the_order_of_adding() -> None:
    queue = RankQueue()
    for serial, arrival in enumerate([3.0, 1.0, 2.0, 1.0]):
        queue.push(waiting(serial, arrival, priority=-serial))
    assert order(queue) == [1, 3, 2, 0]


def test_priority_goes_first_and_ties_are_by_arrival() -> None:
    queue = RankQueue()
    for serial, priority in enumerate([1, 0, 1, -1]):
        queue.push(waiting(serial, float(serial), priority, policy="priority"))
    assert order(queue) == [3, 1, 0, 2]


def test_waiting_makes_up_for_priority() -> None:
    queue = RankQueue()
    queue.push(waiting(0, 0.0, priority=2, policy="priority", ageing_s=10))
    queue.push(waiting(1, 19.0, priority=0, policy="priority", ageing_s=10))
    queue.push(waiting(2, 21.0, priority=0, policy="priority", ageing_s=10))
    assert order(queue) == [1, 0, 2]


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_removed_sequences_are_not_popped_and_do_not_pile_up(policy: str) -> None:
    queue = make_queue(policy)
    keep = waiting(0)
    queue.push(keep)
    for serial in range(1, 1000):
        gone = waiting(serial, tenant=str(serial % 3))
        queue.push(gone)
        queue.remove(gone)
    assert len(queue) == 1
    heaps = [queue] if isinstance(queue, RankQueue) else [t.waiting for t in queue._tenants.values()]
    assert sum(len(heap._heap) for heap in heaps) < 100
    assert order(queue) == [0]


def test_put_back_keeps_the_place() -> None:
    for queue in (RankQueue(), FairQueue()):
        for serial in range(3):
            queue.push(waiting(serial))
        first = queue.pop()
        assert first is not None
        queue.put_back(first)
        assert order(queue) == [0, 1, 2]


def test_fair_gives_the_next_turn_to_the_tenant_that_had_least() -> None:
    queue = FairQueue()
    for serial in range(6):
        queue.push(waiting(serial, tenant="ab"[serial >= 3]))
    turns = []
    for _ in range(6):
        sequence = queue.pop()
        assert sequence is not None
        turns.append(sequence.request.request_id)
        queue.served([(sequence, 100 if turns[-1] < 3 else 50)])
    assert turns == [0, 3, 4, 1, 5, 2]


def test_an_idle_tenant_saves_nothing_up() -> None:
    queue = FairQueue()
    queue.push(waiting(0, tenant="busy"))
    busy = queue.pop()
    assert busy is not None
    for serial in range(1, 20):
        queue.push(waiting(serial, tenant="busy"))
    queue.served([(busy, 10_000)])
    for serial in range(100, 120):
        queue.push(waiting(serial, tenant="new"))
    turns = []
    for _ in range(12):
        sequence = queue.pop()
        assert sequence is not None
        queue.served([(sequence, 100)])
        turns.append(sequence.request.request_id >= 100)
    assert 4 <= sum(turns) <= 8, "they share from now on"


def test_no_stream_of_new_tenants_keeps_an_old_one_waiting() -> None:
    queue = FairQueue()
    greedy = waiting(0, tenant="greedy")
    queue.push(greedy)
    assert queue.pop() is greedy
    queue.push(waiting(1, tenant="greedy"))
    queue.served([(greedy, 5_000)])
    for serial in range(2, 300):
        queue.push(waiting(serial, tenant=str(serial)))
        queue.push(waiting(1000 + serial, tenant=str(1000 + serial)))
        sequence = queue.pop()
        assert sequence is not None
        if sequence.request.request_id == 1:
            break
        queue.served([(sequence, 100)])
    else:
        raise AssertionError("the old tenant waits for ever")


def test_idle_tenants_are_forgotten() -> None:
    queue = FairQueue()
    for serial in range(5000):
        queue.push(waiting(serial, tenant=str(serial)))
        sequence = queue.pop()
        assert sequence is not None
        queue.served([(sequence, 10)])
    assert len(queue._tenants) < 1100


def test_a_flood_of_one_tenant_leaves_half_to_the_other() -> None:
    driver = Driver(config(policy="fair", max_num_seqs=4, num_pages=200))
    rng = random.Random(1)
    number = {"flood": 0, "calm": 1000}

    def add(tenant: str) -> None:
        prompt = [rng.randrange(10, 900) for _ in range(10)]
        driver.scheduler.add(
            request(number[tenant], prompt, 20, salt=(("tenant", tenant),), arrival_s=driver.now_s, ignore_eos=True)
        )
        number[tenant] += 1

    for _ in range(200):
        add("flood")
    for _ in range(10):
        driver.step()
    for _ in range(20):
        add("calm")
    while sum(key[0] >= 1000 for key in driver.finish) < 20:
        driver.step()
    flood = sum(key[0] < 1000 for key in driver.finish)
    assert 15 <= flood <= 40


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_time_of_a_step_does_not_grow_with_the_number_of_the_waiting(policy: str) -> None:
    def seconds(count: int) -> float:
        driver = Driver(config(policy=policy, max_num_seqs=4, num_pages=200))
        for i in range(count):
            driver.scheduler.add(request(i, 12, 200, salt=(("tenant", str(i % 7)),), ignore_eos=True))
        times = []
        for _ in range(60):
            begin = time.process_time()
            step = driver.scheduler.schedule(0.0)
            times.append(time.process_time() - begin)
            assert step is not None
            driver.scheduler.apply(step, driver.executor.execute(step), 0.0)
        return float(np.median(times))

    few, many = min(seconds(8) for _ in range(3)), min(seconds(3000) for _ in range(3))
    assert many < 3 * few + 1e-4
