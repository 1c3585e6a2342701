"""A sweep that is killed twenty times ends as if nothing had happened."""

import json

import children
import numpy as np


def test_twenty_kills_change_no_bit(tmp_path, compiled):
    script = children.ROOT / "tests" / "killed_sweep.py"
    code, output = children.finish(children.start([script, tmp_path / "whole", 0, 0], compiled))
    assert code == 0, output
    seed = int(np.random.default_rng().integers(2**31))  # other moments each time
    code, output = children.finish(children.start([script, tmp_path / "killed", 20, seed], compiled))
    assert code == 0, f"seed {seed}: {output}"
    told = json.loads(output.strip().splitlines()[-1])
    assert told["code"] == 0, f"seed {seed}: {output}"
    assert len(told["killed"]) == 20
    assert set(told["killed"]) == {"from outside", "half written", "before rename", "after rename", "between segments"}
    names = {"results.csv", "results.json"}
    whole = {name: (tmp_path / "whole" / "1" / name).read_bytes() for name in names}
    assert whole["results.csv"].count(b"\n") == 7
    for number in range(1, told["directories"] + 1):
        directory = tmp_path / "killed" / str(number)
        for name in names:
            assert (directory / name).read_bytes() == whole[name], f"seed {seed}: {name}"
        left = {path.name for path in directory.iterdir()} - names - {"results.parquet"}
        assert left == {".lock", "manifest.json", "part-0000.npz", "part-0001.npz"}
