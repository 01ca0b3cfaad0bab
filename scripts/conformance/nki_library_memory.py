"""Patches of nki-library's scratch copy that take memory and time from what the suite does around
the kernels: inputs, golden values and comparison stay as they are (`nki_library_lean`,
`nki_library_pieces`).
"""

from __future__ import annotations

from nki_library_patch import Patch, replace, replace_all

MEMORY = (
    Patch(
        "test/integration/nkilib/experimental/transformer/test_attention_block_tkg.py",
        "makes and compares caches as a whole in float64 and float32, golden values twice, and "
        "keeps the caches of all ranks for each: ten times the memory of the inputs; here the "
        "same values are made and compared a piece at a time",
        replace_all(
            (
                "import pytest\n",
                "import pytest\n"
                "from nki_library_pieces import "
                "compared, drawn, golden_values, refuse_bytes, refuse_large\n",
            ),
            (
                "    kv_cache_dtype = nl.float8_e4m3 if cfg.kv_quant else dtype\n",
                "    kv_cache_dtype = nl.float8_e4m3 if cfg.kv_quant else dtype\n"
                "    caches = int(np.prod(K_cache_shape)) + int(np.prod(V_cache_shape))\n"
                "    refuse_bytes(caches * dt.sizeinbytes(kv_cache_dtype))\n",
            ),
            (
                "np.ascontiguousarray(dt.static_cast(_rng.uniform(-1.0, 1.0, shape)"
                ".astype(np.float32), dtype))",
                "drawn(shape, lambda count: dt.static_cast("
                "_rng.uniform(-1.0, 1.0, count).astype(np.float32), dtype))",
            ),
            (
                "np.ascontiguousarray(dt.static_cast(_rng.normal(0.0, std, shape)"
                ".astype(np.float32), dtype))",
                "drawn(shape, lambda count: dt.static_cast("
                "_rng.normal(0.0, std, count).astype(np.float32), dtype))",
            ),
            (
                "        K_cache_f32 = np.random.normal(0, kv_std, K_cache_shape)"
                ".astype(np.float32)\n"
                "        V_cache_f32 = np.random.normal(0, kv_std, V_cache_shape)"
                ".astype(np.float32)\n",
                "\n"
                "        def scaled(count):\n"
                "            found = np.random.normal(0, kv_std, count).astype(np.float32)\n"
                "            return dt.static_cast(np.clip(found, -240, 240), kv_cache_dtype)\n\n",
            ),
            (
                "dt.static_cast(np.clip(K_cache_f32, -240, 240), kv_cache_dtype)",
                "drawn(K_cache_shape, scaled)",
            ),
            (
                "dt.static_cast(np.clip(V_cache_f32, -240, 240), kv_cache_dtype)",
                "drawn(V_cache_shape, scaled)",
            ),
            (").numpy()  # mask:", ").to(torch.uint8).numpy()  # mask:"),
            (
                "    kernel_input = generate_kernel_inputs(cfg)\n",
                "    kernel_input = generate_kernel_inputs(cfg)\n    refuse_large(kernel_input)\n",
            ),
            (
                "    kernel_input = generate_kernel_inputs(kvdp_cfg)\n",
                "    kernel_input = generate_kernel_inputs(kvdp_cfg)\n"
                "    refuse_large(kernel_input)\n",
            ),
            (
                "torch_ref_wrapper(torch_ref)(**kernel_input)",
                "golden_values(torch_ref_wrapper, torch_ref, kernel_input)",
            ),
            ("v.astype(output_dtypes[k])", "v.astype(output_dtypes[k], copy=False)"),
            (
                "_updated'][rank_id * B_attn : (rank_id + 1) * B_attn]",
                "_updated'][rank_id * B_attn : (rank_id + 1) * B_attn].copy()",
            ),
            (
                "_infer_output_shapes_and_dtypes(\n"
                '            {k.removesuffix(".must_alias_input"): v for k, v in ki.items()}, '
                "cfg.lnc\n        )",
                "golden_outputs",
            ),
            (
                "            actual = inference_output.view(_dtype).reshape(_shape)"
                ".astype(np.float32)\n"
                "            expected = _golden.astype(np.float32)\n",
                "            actual = inference_output.view(_dtype).reshape(_shape)\n",
            ),
            (
                "            a, b = actual.flatten(), expected.flatten()\n"
                "            cos_sim = np.dot(a, b) / "
                "(np.linalg.norm(a) * np.linalg.norm(b) + 1e-12)\n",
                "            cos_sim, allclose_pass = compared(\n"
                "                actual, _golden, maxAllClose, _rtol, _atol, _min_pass_rate, "
                "self.logfile\n            )\n",
            ),
            (
                "            allclose_pass = maxAllClose(\n"
                "                actual, expected, rtol=_rtol, atol=_atol, verbose=1, "
                "logfile=self.logfile, min_pass_rate=_min_pass_rate\n            )\n",
                "",
            ),
        ),
    ),
    Patch(
        "test/integration/nkilib/utils/tensor_generators.py",
        "draws float8 weights as a whole in float64: 30 times their memory; the same, in pieces",
        replace_all(
            ("import numpy as np\n", "import numpy as np\nfrom nki_library_pieces import drawn\n"),
            (
                "        rand_arr = np.random.random_sample(shape)\n        w_scale =",
                "        most = {nl.float8_e4m3: 240.0, nl.float8_e4m3fn: 448.0, "
                "nl.float8_e5m2: 57344.0}[dtype]\n\n"
                "        def cast(count):\n"
                "            found = np.random.random_sample(count) * (2 * most) - most\n"
                "            return dt.static_cast(found, dtype)\n\n"
                "        rand_arr = drawn(shape, cast)\n        w_scale =",
            ),
            (
                "            rand_arr_casted = dt.static_cast(\n"
                "                dt.static_cast(rand_arr * (max_val - min_val) + min_val, dtype), "
                "np.float32\n            )\n",
                "",
            ),
            (
                "return dt.static_cast(rand_arr_casted, dtype), w_scale, in_scale",
                "return rand_arr, w_scale, in_scale",
            ),
        ),
    ),
    Patch(
        "test/utils/unit_test_framework.py",
        "copies what a kernel writes into; the simulation mode leaves the inputs as they are",
        replace('v.copy() if hasattr(v, "copy") else v', "v"),
    ),
    Patch(
        "test/utils/test_orchestrator.py",
        "writes all inputs to files for a device, in simulation mode too",
        replace(
            "        if kernel_under_test.kernel_input is None:\n            return {}\n",
            "        if kernel_under_test.kernel_input is None "
            "or self.trace_mode == TraceMode.Simulator:\n            return {}\n",
        ),
    ),
    Patch(
        "test/utils/output_validator.py",
        "compares large outputs as a whole in float64: the same comparison in parts",
        replace_all(
            (
                "import get_largest_abs_diff, maxAllClose\n",
                "import get_largest_abs_diff, maxAllClose\n"
                "from nki_library_lean import all_close, comparable, is_large, largest_error\n",
            ),
            (
                "actual_output = actual_outputs[output_key].astype(np.float32)\n",
                "actual_output = comparable(actual_outputs[output_key])\n",
            ),
            (
                "expected_output = expected_value.astype(np.float32)\n",
                "expected_output = comparable(expected_value)\n",
            ),
            (
                "largest_abs_diff = get_largest_abs_diff(",
                "largest_abs_diff = "
                "(largest_error if is_large(actual_output) else get_largest_abs_diff)(",
            ),
            (
                "                comparison_passed = maxAllClose(\n",
                "                comparison_passed = "
                "(all_close if is_large(actual_output) else maxAllClose)(\n",
            ),
        ),
    ),
    Patch(
        "test/utils/test_orchestrator.py",
        "copies an output to write it to a file",
        replace("f.write(value.tobytes())", "np.ascontiguousarray(value).tofile(f)"),
    ),
    Patch(
        "test/integration/nkilib/utils/tensor_generators.py",
        "draws whole tensors in float64: the same numbers in parts",
        replace_all(
            (
                "import numpy as np\n",
                "import numpy as np\nfrom nki_library_pieces import drawn\n",
            ),
            (
                "        rand_arr = np.random.random_sample(shape)\n"
                "        if np.issubdtype(dtype, np.floating):\n",
                "        if np.prod(shape) > 1 << 24:\n"
                "            return drawn(shape, lambda count: generator((count,), dtype))\n"
                "        rand_arr = np.random.random_sample(shape)\n"
                "        if np.issubdtype(dtype, np.floating):\n",
            ),
            (
                "        rand_arr = np.random.random_sample(shape) * 480.0 - 240.0\n",
                "        if np.prod(shape) > 1 << 24:\n"
                "            return drawn(shape, lambda count: generator((count,), dtype))\n"
                "        rand_arr = np.random.random_sample(shape) * 480.0 - 240.0\n",
            ),
            (
                "(rng.normal(size=shape) * std + mean).astype(guessed_dtype)",
                "drawn(\n            shape, lambda count: "
                "(rng.normal(size=count) * std + mean).astype(guessed_dtype)\n        )",
            ),
        ),
    ),
    Patch(
        "src/nkilib_src/nkilib/core/attention/attention_bwd_torch.py",
        "holds the scores of all heads at once, five times: the same values head by head",
        lambda text: (
            text + "\n\nfrom nki_library_lean import backward_by_heads, forward_by_heads\n\n"
            "compute_o_lse = forward_by_heads(compute_o_lse)\n"
            "attention_bwd_torch_ref = backward_by_heads(attention_bwd_torch_ref, reduce_kv_grad)\n"
        ),
    ),
    Patch(
        "test/integration/nkilib/experimental/transformer/test_transformer_tkg.py",
        "copies all weights and caches for golden values, which do not write into them",
        replace_all(
            ("import pytest\n", "import pytest\nfrom nki_library_lean import as_torch\n"),
            ("torch.tensor(arr.astype(np.float32)).to(torch.bfloat16)", "as_torch(arr)"),
        ),
    ),
    Patch(
        "src/nkilib_src/nkilib/core/attention/attention_tkg_torch.py",
        "copies the caches of all sequences for each head: the same products in parts",
        replace_all(
            ("import torch\n", "import torch\nfrom nki_library_lean import by_rows\n"),
            (
                "k_prior.permute(0, 1, 3, 2) @ q  #",
                "by_rows(lambda k, x: k.permute(0, 1, 3, 2) @ x, k_prior, q)  #",
            ),
            (
                "score.permute(0, 1, 3, 2) @ v_prior  #",
                "by_rows(lambda x, v: x.permute(0, 1, 3, 2) @ v, score, v_prior)  #",
            ),
        ),
    ),
    Patch(
        "src/nkilib_src/nkilib/core/attention/attention_cte_torch.py",
        "holds the scores of all queries at once, five times: the same values in parts",
        lambda text: (
            text + "\n\nfrom nki_library_lean import forward_by_queries\n\n"
            "attention_cte_torch_ref = forward_by_queries(attention_cte_torch_ref)\n"
        ),
    ),
    Patch(
        "test/integration/nkilib/core/rmsnorm/test_rmsnorm_quant.py",
        "holds all rows in float32 six times and compares them in float64: the same in parts",
        replace_all(
            (
                "def rmsnorm_quant_ref(\n",
                "from nki_library_lean import all_close, by_sequence, comparable, is_large\n\n\n"
                "@by_sequence\ndef rmsnorm_quant_ref(\n",
            ),
            (
                "dt.static_cast(norm_out_hw_fp8, np.float32)",
                "comparable(norm_out_hw_fp8)",
            ),
            (
                "dt.static_cast(norm_out_golden, np.float32)",
                "comparable(norm_out_golden)",
            ),
            (
                "passed = maxAllClose(norm_out_hw_fp32, ",
                "passed = (all_close if is_large(norm_out_hw_fp32) else maxAllClose)("
                "norm_out_hw_fp32, ",
            ),
        ),
    ),
    Patch(
        "src/nkilib_src/nkilib/experimental/loss/cross_entropy_torch.py",
        "holds several copies of all logits: the same values some rows after the other",
        replace_all(
            (
                "import torch.nn.functional as F\n",
                "import torch.nn.functional as F\n"
                "from nki_library_lean import by_rows, cross_entropy_gradient\n",
            ),
            (
                "F.cross_entropy(logits, targets, reduction='none')",
                "by_rows(lambda x, y: F.cross_entropy(x, y, reduction='none'), logits, targets)",
            ),
            (
                "torch.logsumexp(logits, dim=1)",
                "by_rows(lambda x: torch.logsumexp(x, dim=1), logits)",
            ),
            (
                "    # Create a copy of logits with gradient tracking enabled\n",
                "    return cross_entropy_gradient(logits, targets, reduction)\n",
            ),
        ),
    ),
    *(
        Patch(
            f"test/integration/nkilib/experimental/loss/test_cross_entropy_{direction}.py",
            "draws and converts all logits in float64 and float32: the same numbers in parts",
            replace_all(
                (
                    "import pytest\n",
                    "import pytest\n"
                    "from nki_library_lean import as_numpy, as_torch\n"
                    "from nki_library_pieces import drawn, refuse_bytes\n",
                ),
                (
                    "    np.random.seed(42)\n",
                    "    np.random.seed(42)\n"
                    "    refuse_bytes(num_positions * V * np.dtype(numpy_dtype).itemsize)\n",
                ),
                (
                    "np.random.randn(num_positions, V).astype(numpy_dtype)",
                    "drawn(\n        (num_positions, V), "
                    "lambda count: np.random.randn(count).astype(numpy_dtype)\n    )",
                ),
                (
                    "torch.from_numpy(logits.astype(np.float32)).to(torch_dtype)",
                    "as_torch(logits)",
                ),
                (
                    "torch.from_numpy(logits_np.astype(np.float32)).to(torch_dtype)",
                    "as_torch(logits_np)",
                ),
                ("grad_logits.float().numpy().astype(ml_dtypes.bfloat16)", "as_numpy(grad_logits)"),
                ("grad_logits.float().numpy().astype(np.float32)", "as_numpy(grad_logits)"),
                (
                    "np.zeros((num_positions, V), dtype=numpy_dtype)",
                    "np.broadcast_to(numpy_dtype(0), (num_positions, V))",
                ),
            ),
        )
        for direction in ("forward", "backward")
    ),
)
