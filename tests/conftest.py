"""The house rules of every test: threads, poisoned memory, hypothesis profiles, GPU skips."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

# Before CUDA starts: cuBLAS warns under the deterministic mode of `poisoned_memory` without it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import hypothesis
import pytest
import torch
from hypothesis.internal.conjecture import providers

# Newer versions mix the constants of all local modules that are imported into what they draw, so
# that a test would draw otherwise after other tests; and they take seconds to look for them.
if hasattr(providers, "is_local_module_file"):
    providers.is_local_module_file = lambda path: False

# `ci` draws the same examples every time; `nightly` (--hypothesis-profile=nightly) draws new ones.
hypothesis.settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, max_examples=100, print_blob=True
)
hypothesis.settings.register_profile(
    "nightly", derandomize=False, deadline=None, max_examples=5000, print_blob=True
)
hypothesis.settings.load_profile("ci")

NO_GPU = "needs a CUDA or ROCm device"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="a test marked gpu that skips, but for want of a second GPU, fails instead",
    )
    parser.addoption(
        "--gpu-launches",
        action="store_true",
        help="each launch of Triton's interpreter is also compiled as a GPU's would be",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist share the cores, so each takes one.
    torch.set_num_threads(1 if hasattr(config, "workerinput") else 2)


# Their tests share processes, which each take seconds to start.
TOGETHER = ("tests/optim/sharding/", "tests/examples/test_together.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With one file to a worker: all tests of several processes to one worker, as if in a file."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(TOGETHER):
                return "together"
            scope: str = super()._split_scope(nodeid)
            return scope

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without collecting garbage.

    Of twenty thousand tests none is garbage before the end; a quarter of the time went into looking
    for it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `sampled` make the cases slow that do not run at every change.

    With `slow=n` every n-th of its slow cases stays slow alone; the others are nightly as well.
    """
    tests: dict[tuple[object, ...], list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            assert isinstance(item, pytest.Function)
            tests.setdefault((item.parent, item.originalname), []).append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("sampled")
        assert marker is not None
        _mark_sampled(cases, *marker.args, **marker.kwargs)


def _mark_sampled(cases: list[pytest.Function], every: int = 0, slow: int = 1) -> None:
    kept = set(_sampled([c for c in cases if not any(c.iter_markers("slow"))], every))
    others = [case for case in cases if case not in kept]
    for number, case in enumerate(others):
        case.add_marker(pytest.mark.slow)
        if number % slow:
            case.add_marker(pytest.mark.nightly)


def _sampled(cases: list[pytest.Function], every: int) -> list[pytest.Function]:
    """Each `every`-th case; without a number so few that every value of every parameter is used."""
    if every:
        return cases[::every]
    kept = []
    wanted = {c: {(name, id(value)) for name, value in c.callspec.params.items()} for c in cases}
    while wanted:
        # The first of those with most values that no other has yet.
        most = max(wanted, key=lambda case: len(wanted[case]))
        used = wanted[most]
        kept.append(most)
        wanted = {case: values - used for case, values in wanted.items() if values - used}
    return kept


def _missing_gpus(item: pytest.Item) -> str:
    """Return why the machine lacks the devices of a test marked `gpu`, or an empty string."""
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return ""
    if not torch.cuda.is_available():
        return NO_GPU
    count = marker.kwargs.get("count", 1)
    found = torch.cuda.device_count() if count > 1 else 1
    return f"needs {count} GPUs, and there are {found}" if found < count else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if reason := _missing_gpus(item):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    required = item.config.getoption("--require-gpu") and item.get_closest_marker("gpu")
    # A machine with fewer GPUs than a test needs is no fault of that machine.
    allowed = _missing_gpus(item) not in ("", NO_GPU)
    if required and report.skipped and not allowed and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--require-gpu: {item.nodeid} must not skip ({reason})"
    return report


@pytest.fixture(scope="session", autouse=True)
def launches_of_a_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under --gpu-launches a launch that Triton could not compile for a GPU raises."""
    if not request.config.getoption("--gpu-launches"):
        yield
        return
    from mcf.kernels.triton.stand_in import gpu_launches

    with gpu_launches():
        yield


@pytest.fixture
def on_torch() -> Iterator[None]:
    """Run on the torch executor, which compiles nothing: for tests of values, not of bits."""
    import mcf

    with mcf.executor("torch"):
        yield


@pytest.fixture
def float32_registers(on_torch: None) -> Iterator[None]:
    """Compute in float32 registers, on the torch executor."""
    import mcf

    with mcf.registers("float32"):
        yield


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fill what `torch.empty` and its relatives return: NaN, or an integer type's largest value.

    torch does this in its deterministic mode, below Python, so compiled code is poisoned as well.
    The mode only warns about operations without a deterministic form, and those warnings are
    ignored in pyproject.toml: the fill is all that is wanted of it.
    """
    mode = torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    # As `torch.use_deterministic_algorithms(True, warn_only=True)`, which imports a second's worth.
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.set_deterministic_debug_mode(mode)
