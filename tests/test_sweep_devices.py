"""Four virtual devices: sharded seeds and sharded rows give what one device gives."""

import json

import children
import pytest
from sharded_sweep import HORIZON, SWEEP

from kqljax import cli


@pytest.fixture(scope="module")
def one_device(tmp_path_factory, compile_once):
    """The sweep on the one device of this process."""
    out = tmp_path_factory.mktemp("one")
    assert cli.main([*SWEEP, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def four_devices(tmp_path_factory, compiled):
    out = tmp_path_factory.mktemp("four")
    script = children.ROOT / "tests" / "sharded_sweep.py"
    code, output = children.finish(children.start([script, out], compiled, devices=4))
    assert code == 0, output
    found = json.loads(output.strip().splitlines()[-1])
    assert found["devices"] == 4
    assert (found["seeds_code"], found["rows_code"]) == (0, 0)
    return out, found


@pytest.mark.parametrize("shard", ["seeds", "rows"])
def test_four_devices_give_what_one_gives(one_device, four_devices, shard):
    children.assert_same_sweep(one_device, four_devices[0] / shard)


def test_sharded_rows_equal_the_unsharded_engine(four_devices):
    rows = four_devices[1]["rows"]
    assert rows["stored"] == [HORIZON, HORIZON]
    assert rows["difference"] < children.TOLERANCE
    assert rows["relative"] < children.TOLERANCE


def test_sharded_rows_need_a_quarter_of_the_memory(four_devices):
    whole, rows = (four_devices[1]["rows"][name] for name in ("whole", "rows"))
    for name in ("held", "held_after"):
        assert 0.25 <= rows[name] / whole[name] < 0.28
    # A step makes no copy of its share, nor of anybody else's.
    share = HORIZON**2 * 8 / 4
    assert rows["temporary"] < share
    assert rows["moved"] == 0


def test_the_sharded_sweep_lowers_for_accelerators(four_devices):
    for shard in ("seeds", "rows"):
        found = four_devices[1]["lowered"][shard]
        assert found == {"devices": 4, "platforms": ["cuda", "tpu"], "callback": False}
