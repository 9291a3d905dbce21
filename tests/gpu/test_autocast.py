"""CUDA's autocast and the simulated one, op by op: the type of each result."""

from __future__ import annotations

import json
from pathlib import Path

from gpu.fakes import run

CODE = """
    from unittest import mock

    from tightfit.device import GPUS
    from tightfit.simulation.kernels import kernels_of

    with mock.patch.dict(sys.modules, {"torch.testing._internal.common_utils": mock.Mock(TEST_WITH_ROCM=True)}):
        from torch.testing._internal.autocast_test_lists import AutocastTestLists

    LISTS = ["torch_fp16", "torch_fp32", "torch_need_autocast_promote", "torch_expect_builtin_promote", "nn_fp16",
             "nn_fp32", "linalg_fp16", "methods_fp16", "methods_fp32"]

    # cuDNN needs a real driver, and `equal` reads its result.
    def types(device, autocast):
        cases = AutocastTestLists(torch.device(device))
        found = {}
        for listed in LISTS:
            for number, (name, args, *options) in enumerate(getattr(cases, listed)):
                kwargs = options[0] if options and isinstance(options[0], dict) else {}
                module = {"nn": torch._C._nn, "linalg": torch._C._linalg}.get(listed.partition("_")[0], torch)
                if listed.startswith("methods"):
                    module, (first, *args) = args[0], args
                if not isinstance(args, (tuple, list)) or "cudnn" in name or name in ("_convolution", "equal"):
                    continue
                with autocast():
                    try:
                        out = getattr(module, name)(*args, **kwargs)
                    except NotImplementedError as error:
                        continue
                out = out[0] if isinstance(out, tuple) else out
                found[f"{listed} {name} {number}"] = str(getattr(out, "dtype", out))
        return found

    torch.backends.cudnn.enabled = False  # it needs a real driver
    real = types("cuda", lambda: torch.autocast("cuda", torch.float16))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True), kernels_of(GPUS["T4 16GB"]):
        simulated = types("cpu", lambda: torch.autocast("cpu", torch.float16))
    print(json.dumps([real, simulated]))
"""


def test_every_op_has_the_same_type_in_the_simulation(tmp_path: Path) -> None:
    real, simulated = json.loads(run(CODE, tmp_path).splitlines()[-1])
    assert len(real) > 80
    assert simulated == real
