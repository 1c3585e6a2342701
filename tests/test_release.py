"""What `make release-check` looks for in a wheel; the check itself builds and installs, which is
too much for a test.
"""

from release_check import strangers

GOOD = [
    "kqljax/__init__.py",
    "kqljax/py.typed",
    "kqljax/agent/agent.py",
    "kqljax-0.1.0.dist-info/METADATA",
]


def test_a_wheel_holds_the_library_alone():
    assert strangers(GOOD) == []
    assert strangers([*GOOD, "tests/test_kql.py", "conftest.py"]) == [
        "tests/test_kql.py",
        "conftest.py",
    ]


def test_the_mark_of_types_is_missed():
    assert strangers([name for name in GOOD if not name.endswith("py.typed")]) == [
        "kqljax/py.typed is missing"
    ]
