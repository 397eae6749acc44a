import re

from cns_dask.results.report.timeline import memory_chart, time_ticks, timeline_chart


def test_stages_and_processes_share_one_clock():
    stages = [("neighbors", 0.0, 30.0), ("<b>", 30.0, 10.0)]
    moments = [(10.0, {"worker 1": 0.2}), (35.0, {"worker 1": 1.5})]
    made = timeline_chart(stages, moments, ["worker 1"])
    bars = [
        tuple(map(float, each))
        for each in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*class="bar"', made)
    ]
    assert bars[1][0] == bars[0][0] + bars[0][1]
    assert bars[0][1] / bars[1][1] == 3
    assert "&lt;b&gt;" in made
    assert made.count('class="busy"') == 2
    assert "150\u202f% busy" in made


def test_many_processes_are_cut_and_counted():
    names = [f"worker {at}" for at in range(1, 41)]
    made = timeline_chart([("a", 0.0, 1.0)], [(0.5, dict.fromkeys(names, 0.5))], names)
    assert made.count('class="busy"') == 16
    assert "and 24 more" in made
    assert "and 24 more" in memory_chart(dict.fromkeys(names, 2**30), {})


def test_memory_is_drawn_against_the_plan():
    made = memory_chart({"worker 1": 2**30, "worker 2": 2**29}, {"worker 1": 2**31, "worker 2": 2**31})
    widths = [float(each) for each in re.findall(r'width="([\d.]+)" height="16"', made)]
    assert widths[0] == 2 * widths[1]
    assert made.count('class="plan"') == 2
    assert "worker 1 used 1.0\u202fGiB of 2.0\u202fGiB planned" in made


def test_a_run_of_no_time():
    assert "0\u202fs" in timeline_chart([("a", 0.0, 0.0)], [], [])
    for end in (0.001, 5, 59, 61, 4000, 1e5, 3e6):
        assert 1 <= len(time_ticks(end)) <= 12
