"""What runs on an A100 and on a TPU v5e, counted in compiled programs, without either device.

    make compiled                          # in a virtual environment of its own; writes results/compiled.json
    python benchmarks/compiled.py --smoke  # the TPU programs at a small size, for the tests

XLA compiles for a device that is only described. Nothing runs and no time is measured. What is
counted: kernels launched in one turn of the training loop, environment and random numbers included
(a launch costs some 2 to 4 microseconds, however few seeds run); copies of arrays that grow with
the capacity; loops over seeds; bytes that one step moves through the device's memory, over those of
the state.

An A100 needs the packages jax-cuda12-plugin, jax-cuda12-pjrt and nvidia-cuda-nvcc-cu12, a TPU
libtpu.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
A100 = Path(__file__).parent / "a100.txtpb"
TARGETS = ("cuda", "tpu")
NO_KERNEL = {
    "parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "opt-barrier", "copy-done",
    "async-done",
}  # fmt: skip
BYTES = {
    "f64": 8,
    "s64": 8,
    "u64": 8,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "bf16": 2,
    "f16": 2,
    "pred": 1,
    "u8": 1,
    "s8": 1,
}


class Instruction(NamedTuple):
    """A line of a compiled program: `name = type operation(arguments), attributes`."""

    name: str
    type: str
    operation: str
    rest: str

    @property
    def bytes(self) -> int:
        return size_of(self.type)

    @property
    def is_copy(self) -> bool:
        """A copy in the device's memory; S(1) and above are memories inside of a TPU."""
        is_inside = re.search(r"S\([1-9]", self.type) is not None
        return self.operation.startswith("copy") and not is_inside


class Program:
    """A compiled program as text, by its computations."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] | None = None
        for line in text.splitlines():
            head = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
            if head and not line.startswith(" "):
                current = self.computations[head.group(2)] = []
                self.entry = head.group(2) if head.group(1) else self.entry
            elif line.startswith("}"):
                current = None
            elif current is not None and (found := _instruction(line)):
                current.append(found)

    def loops(self) -> Iterator[tuple[str, int | None]]:
        """Body and number of turns, where it is known, of every loop."""
        for instruction in self.instructions("while"):
            body = re.search(r"body=%?([\w.\-]+)", instruction.rest)
            turns = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.rest)
            assert body
            yield body.group(1), int(turns.group(1)) if turns else None

    def instructions(self, operation: str) -> Iterator[Instruction]:
        for each in self.computations.values():
            yield from (found for found in each if found.operation == operation)

    def kernels(self, computation: str) -> list[Instruction]:
        """What a computation launches; calls are looked into."""
        found: list[Instruction] = []
        for each in self.computations[computation]:
            if each.operation == "call":
                callee = re.search(r"to_apply=%?([\w.\-]+)", each.rest)
                assert callee
                found += self.kernels(callee.group(1))
            elif each.operation not in NO_KERNEL:
                found.append(each)
        return found

    def moved(self) -> int:
        """Bytes of the entry's operands and results in the device's memory; a row that is written
        in place counts once.
        """
        types = {each.name: each.type for each in self.computations[self.entry]}

        def outside(of_type: str) -> int:  # S(1) and above are memories inside of the chip
            return 0 if re.search(r"S\([1-9]", of_type) else size_of(of_type)

        total = 0
        for each in self.kernels(self.entry):
            operands = re.findall(r"%([\w.\-]+)", each.rest.split("), ")[0])
            read = [outside(types[name]) for name in operands if name in types]
            if each.operation == "copy-start":
                total += sum(
                    outside(part) for part in re.findall(r"\w+\[[\d,]*\]\{[^}]*\}", each.type)[:2]
                )
            elif "dynamic-update-slice" in each.name or each.operation == "dynamic-update-slice":
                total += sum(read) - max(read, default=0)
            else:
                total += sum(read) + outside(each.type)
        return total


def _instruction(line: str) -> Instruction | None:
    found = re.match(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$", line)
    if not found:
        return None
    rest, depth, end = found.group(2), 0, 0
    if rest.startswith("("):
        for end, letter in enumerate(rest):  # noqa: B007
            depth += (letter == "(") - (letter == ")")
            if not depth:
                break
        of_type, rest = rest[: end + 1], rest[end + 1 :].strip()
    else:
        of_type, _, rest = rest.partition(" ")
    return Instruction(found.group(1), of_type, rest.split("(")[0].strip(), rest)


def size_of(of_type: str) -> int:
    """Bytes of a type such as f32[16,1000]{1,0}, or of a tuple of them."""
    total = 0
    for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", of_type):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        total += count * BYTES.get(kind, 0)
    return total


# Programs -----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A program: `engine` "exact" or "weights", in a precision, with seeds side by side; of a run
    or of one step.
    """

    engine: str
    dtype: str
    seeds: int
    stages: int
    what: str = "train"


CASES = {
    "cuda": (
        Case("exact", "float64", 16, 1),
        Case("exact", "float64", 16, 2),
        Case("weights", "float32", 128, 1),
        Case("exact", "float64", 16, 1, "step"),
        Case("weights", "float32", 128, 1, "step"),
    ),
    "tpu": (
        Case("exact", "float32", 16, 1),
        Case("weights", "float32", 128, 1),
        Case("exact", "float32", 16, 1, "step"),
        Case("weights", "float32", 128, 1, "step"),
    ),
}


def device(target: str) -> Any:
    """One device of a described topology, as a sharding."""
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    if target == "cuda":
        found = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=A100.read_text(), topology="1x1x1"
        )
    else:
        found = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return SingleDeviceSharding(found.devices[0])


def measure(target: str, case: Case, capacity: int) -> dict[str, Any]:
    """Counts in one program."""
    import jax
    import jax.numpy as jnp

    import kqljax
    from kqljax.training import EveryStep

    placed, dtype = device(target), jnp.dtype(case.dtype)
    task, kernel = kqljax.make_task("MountainCar-v0"), kqljax.RBF(eta=0.02)
    engine: Any = kqljax.Exact()
    if case.engine == "weights":
        engine = kqljax.Weights(
            kqljax.features.taylor(kernel, task.obs_dim, task.num_actions, 1e-6)
        )
    # The exact engine in float32 takes no smaller lam.
    lam = 0.004 if (case.engine, case.dtype) == ("exact", "float32") else None
    cfg = task.config(kernel, horizon=capacity, engine=engine, lam=lam)

    def abstract(tree: Any) -> Any:
        def leaf(x: Any) -> Any:
            kind = jax.dtypes.canonicalize_dtype(jnp.result_type(x))
            return jax.ShapeDtypeStruct(jnp.shape(x), kind, sharding=placed)

        return jax.tree.map(leaf, tree)

    state = jax.eval_shape(lambda: kqljax.kql_init(cfg, task.obs_dim, dtype))
    state_bytes = case.seeds * sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    )
    start = time.perf_counter()
    if case.what == "train":

        def run(cfg: Any, keys: Any) -> Any:
            def one(key: Any) -> Any:
                learner = EveryStep(cfg, case.stages)
                found = kqljax.train(
                    jax.random.wrap_key_data(key), task, learner, capacity, dtype=dtype
                )
                return found.state, found.log

            return jax.vmap(one)(keys)

        keys = abstract(jnp.zeros((case.seeds, 2), jnp.uint32))
        compiled = jax.jit(run).lower(abstract(cfg), keys).compile()
    else:
        reals = [jnp.zeros(shape, dtype) for shape in ((task.obs_dim,), (), (task.obs_dim,))]
        step = kqljax.Transition(reals[0], jnp.int32(0), reals[1], reals[2], jnp.array(False))
        many = jax.tree.map(lambda x: jnp.zeros((case.seeds, *x.shape), x.dtype), (state, step))
        stepped = jax.jit(jax.vmap(kqljax.kql_step, in_axes=(None, 0, 0)), donate_argnums=1)
        compiled = stepped.lower(abstract(cfg), *abstract(many)).compile()
    text = compiled.as_text()
    if os.environ.get("KQLJAX_DUMP"):
        name = f"{target}_{case.what}_{case.engine}_{case.stages}.txt"
        (Path(os.environ["KQLJAX_DUMP"]) / name).write_text(text)
    program = Program(text)
    grows = case.seeds * capacity * dtype.itemsize
    row: dict[str, Any] = {
        "target": target, **case._asdict(), "capacity": capacity, "compile_seconds": time.perf_counter() - start,
        "state_megabytes": state_bytes / 1e6, "temporary_megabytes": compiled.memory_analysis().temp_size_in_bytes / 1e6,
    }  # fmt: skip
    if case.what == "train":
        turns = capacity // case.stages
        bodies = [body for body, count in program.loops() if count == turns] or [
            body for body, _ in program.loops()
        ]
        kernels = [program.kernels(body) for body in bodies]
        row["kernels_a_turn"] = [len(each) for each in kernels]
        row["by_operation"] = [
            dict(collections.Counter(k.operation for k in each)) for each in kernels
        ]
    else:
        kernels = [program.kernels(program.entry)]
        row["kernels"] = len(kernels[0])
        row["bytes_moved_over_state"] = program.moved() / state_bytes
        row["loops"] = sum(1 for _ in program.loops())
    copies = [each for found in kernels for each in found if each.is_copy]
    row["large_copies"] = sum(each.bytes >= grows for each in copies)
    row["small_copies"] = len(copies) - row["large_copies"]
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What docs/accelerators.md shows, in Markdown."""
    names = {"cuda": "A100", "tpu": "TPU v5e"}
    lines = [
        "| device | program | kernels in a turn of the loop, or a step | copies of arrays that "
        "grow | other copies | loops over seeds | bytes moved / state |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        stages = f", {row['stages']} stages" if row["stages"] > 1 else ""
        what = "training" if row["what"] == "train" else "`vmap(kql_step)`"
        counts = ", ".join(map(str, row.get("kernels_a_turn", [row.get("kernels")])))
        moved = f"{row['bytes_moved_over_state']:.1f}" if "bytes_moved_over_state" in row else ""
        lines.append(
            f"| {names[row['target']]} | {what}, {row['engine']}, {row['dtype']}, {row['seeds']} "
            f"seeds{stages} | {counts} | {row['large_copies']} | {row['small_copies']} | "
            f"{row.get('loops', '')} | {moved} |"
        )
    return "\n".join(lines)


def missing(target: str) -> str | None:
    """Why a target cannot be compiled for here; None where it can."""
    from importlib.util import find_spec

    module = {"cuda": "jax_cuda12_plugin", "tpu": "libtpu"}[target]
    return (
        None
        if find_spec(module)
        else f"{target}: {module} is not installed; `make compiled` installs it"
    )


def environment(target: str, case: Case) -> dict[str, str]:
    """A child process a program: x64 and the platform are settings of a whole process."""
    found = dict(
        os.environ, JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1"
    )
    found["JAX_ENABLE_X64"] = "1" if case.dtype == "float64" else "0"
    if target == "cuda":
        # Without a device nothing is tuned, and some float64 products then fail to compile.
        found["XLA_FLAGS"] = found.get("XLA_FLAGS", "") + " --xla_gpu_enable_triton_gemm=false"
    return found


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="TPU only, capacity 64, nothing written"
    )
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=TARGETS,
        default=list(TARGETS),
        help="devices to compile for",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for compiled.json")
    parser.add_argument(
        "--one", help=argparse.SUPPRESS
    )  # a child: target, case and capacity as JSON
    args = parser.parse_args(argv)
    if args.one:
        target, case, capacity = json.loads(args.one)
        print(json.dumps(measure(target, Case(*case), capacity)))
        return []
    capacity = 64 if args.smoke else 1000
    rows = []
    for target in ["tpu"] if args.smoke else args.targets:
        if why := missing(target):
            print(why, file=sys.stderr)
            continue
        for case in CASES[target][1:4:2] if args.smoke else CASES[target]:
            one = json.dumps([target, list(case), capacity])
            child = subprocess.run(
                [sys.executable, __file__, "--one", one],
                env=environment(target, case),
                capture_output=True,
                text=True,
            )
            if child.returncode:
                raise SystemExit(f"{target} {case}: {child.stderr[-2000:]}")
            rows.append(json.loads(child.stdout.splitlines()[-1]))
            print(
                f"{target} {case.what} {case.engine}: {rows[-1]['compile_seconds']:.0f} s to "
                "compile",
                file=sys.stderr,
            )
    print(table(rows))
    if rows and not args.smoke:
        import jax
        import jaxlib

        versions = {
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "python": sys.version.split()[0],
        }
        path = args.out / "compiled.json"
        path.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
        print(f"\nwrote {path}")
    return rows


if __name__ == "__main__":
    main()
