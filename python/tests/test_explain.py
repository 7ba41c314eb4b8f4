"""`surefoot.explain`: the fields that the program prints with --json, for texts and exceptions."""

import pytest
import torch

import surefoot

TRACEBACK = '''Traceback (most recent call last):
  File "/home/u/train.py", line 97, in step
    loss = model(x)
  File "/usr/lib/python3/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
    return forward_call(*args)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 3.00 GiB is free.'''


def test_a_traceback_has_its_sizes_frame_and_guide():
    found = surefoot.explain(TRACEBACK)
    assert (found.kind, found.confidence, found.decided_by) == ("out_of_memory", 0.95, "rules")
    assert found.facts["requested_bytes"] == 20 << 30 and found.facts["free_bytes"] == 3 << 30
    assert found.frame["file"] == "/home/u/train.py" and found.frame["line"] == 97
    assert found.page == "docs/errors/cuda-out-of-memory.md"
    assert found.guide["causes"] and found.guide["changes"][0]["before"]
    assert str(found).startswith("out_of_memory (0.95)") and "train.py:97: loss = model(x)" in str(found)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in str(found) and "https://github.com/pytorch/pytorch/issues/18853" in str(found)


def test_a_doubtful_text_has_a_second_guess_and_the_words_that_decided():
    found = surefoot.explain("ValueError: The ``path`` (/no/such/model.pdparams) to load model not exists.")
    assert found.kind == "model_loading" and found.decided_by == "learned" and found.words
    assert set(found.second) == {"kind", "probability"} and "or " + found.second["kind"] in str(found)


def test_an_exception_names_the_users_own_line_and_keeps_the_kind_of_its_type():
    try:
        raise torch.OutOfMemoryError("the words say nothing")
    except torch.OutOfMemoryError as error:
        found = surefoot.explain(error)
    assert found.kind == "out_of_memory"
    assert found.frame["code"] == 'raise torch.OutOfMemoryError("the words say nothing")'


def test_frameworks_beside_pytorch_have_guides_of_their_own():
    pages = {
        "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size of 8 bytes.": "mlx-",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9.00 MiB on device 0: cudaMalloc failed: out of memory": "llama-cpp-",
        "ValueError: No available memory for the cache blocks.": "vllm-",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB.": "hip-",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB.": "xpu-",
    }
    for text, begin in pages.items():
        assert surefoot.explain(text).page.startswith(f"docs/errors/{begin}"), text


def test_what_cannot_be_explained_is_refused():
    with pytest.raises(ValueError, match="nothing to explain"):
        surefoot.explain("  ")
    with pytest.raises(TypeError, match="not a int"):
        surefoot.explain(3)
