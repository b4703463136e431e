"""The replay of CUDA allocator events, on traces made by hand: it needs no device."""

from harness.memory.cuda import sites_at_peak


def event(action, addr, size, line=1):
    frames = [
        {"filename": "libtorch.so", "line": 0, "name": "malloc"},
        {"filename": "a.py", "line": line, "name": "f"},
    ]
    return {"action": action, "addr": addr, "size": size, "frames": frames}


def lines(events):
    return {site.line: site.bytes for site in sites_at_peak(events)}


def test_what_was_live_at_the_peak_is_summed_by_line():
    events = [
        event("alloc", 1, 10, line=1),
        event("alloc", 2, 30, line=2),
        event("alloc", 3, 5, line=2),
        event("free_completed", 2, 30),
        event("alloc", 4, 20, line=3),
    ]
    assert lines(events) == {1: 10, 2: 35}


def test_a_later_higher_peak_replaces_an_earlier_one():
    events = [event("alloc", 1, 10, 1), event("free_completed", 1, 10), event("alloc", 1, 11, 2)]
    assert lines(events) == {2: 11}


def test_frees_of_memory_from_before_the_block_do_not_count():
    assert lines([event("free_completed", 9, 100), event("alloc", 1, 10, 1)]) == {1: 10}


def test_an_address_is_used_again():
    events = [event("alloc", 1, 10, 1), event("free_requested", 1, 10), event("free_completed", 1, 10)]
    events += [event("alloc", 1, 8, 2), event("alloc", 2, 8, 3)]
    assert lines(events) == {2: 8, 3: 8}


def test_nothing_happened():
    assert sites_at_peak([]) == ()
