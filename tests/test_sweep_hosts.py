"""Two processes of two devices each, through jax.distributed on loopback; one is killed, and both go on."""

import re
import socket

import children
import pytest
from sharded_sweep import SWEEP

from kqljax import cli

ARMED = (
    "import sys, killed_sweep; from kqljax import cli; killed_sweep.arm('after rename', 2); sys.exit(cli.main(sys.argv[1:]))"
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_two(out, cache, *more, is_second_killed=False):
    address = f"127.0.0.1:{free_port()}"
    processes = []
    for index in range(2):
        program = ["-c", ARMED] if is_second_killed and index == 1 else ["-m", "kqljax.cli"]
        where = ["--coordinator", address, "--num-processes", 2, "--process-id", index]
        processes.append(children.start([*program, *SWEEP, "--out", out, *where, *more], cache, devices=2))
    return [children.finish(process) for process in processes]


@pytest.fixture(scope="module")
def killed(tmp_path_factory, compiled):
    """A sweep whose second process was killed after its second checkpoint."""
    out = tmp_path_factory.mktemp("killed") / "sweep"
    return out, start_two(out, compiled, "--patience", 8, is_second_killed=True)


def test_a_killed_process_is_named(killed):
    out, ((code, output), (killed_code, killed_output)) = killed
    assert killed_code == -9, killed_output
    assert code == 2, output
    assert re.search(r"kqljax: error: lost process 1 of 2 \(process \d+ on \S+\), silent for \d+ s", output)
    assert "start the same command on all hosts again" in output
    assert not (out / "results.json").exists()
    assert (out / "process-1" / "running-0001.npz").exists()


def test_it_goes_on_and_gives_what_one_device_gives(killed, tmp_path, compiled, compile_once):
    out, _ = killed
    for code, output in start_two(out, compiled):
        assert code == 0, output
    assert cli.main([*SWEEP, "--out", str(tmp_path)]) == 0
    children.assert_same_sweep(tmp_path, out, states=("process-0/states", "process-1/states"))
    # Another number of processes is another sweep.
    assert cli.main([*SWEEP, "--out", str(out)]) == 2


def test_incomplete_addresses_are_refused(tmp_path, capsys):
    assert cli.main([*SWEEP, "--out", str(tmp_path), "--coordinator", "127.0.0.1:1"]) == 2
    assert (
        "several processes need all of --coordinator HOST:PORT, --num-processes N and --process-id I" in capsys.readouterr().err
    )
