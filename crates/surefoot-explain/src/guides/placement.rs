//! Tensors in the wrong place, of the wrong type or shape.

use surefoot_core::fault::FaultKind::{
    DeviceMismatch, DtypeMismatch, PlaceholderStorage, ShapeMismatch, UnsupportedDtype,
};

use super::{CHECK, Guide, change, reference};

pub(super) const GUIDES: &[Guide] = &[
    Guide {
        name: "expected-all-tensors-to-be-on-the-same-device",
        kind: DeviceMismatch,
        message: "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        meaning: "One operation got tensors from two devices. PyTorch never moves a tensor by itself.",
        causes: &[
            "An input was not moved.",
            "A tensor is made inside `forward` without a device: `torch.zeros(...)`, `torch.arange(...)`.",
            "A tensor is an attribute of the module but no buffer, so `.to()` does not move it.",
            "`device_map=\"auto\"` spread the model, and the inputs went to another part.",
        ],
        changes: &[
            change(
                "Make new tensors where the input is.",
                "mask = torch.ones(x.shape[1])",
                "mask = torch.ones(x.shape[1], device=x.device)",
            ),
            change(
                "Register what must move with the module.",
                "self.scale = torch.ones(8)",
                "self.register_buffer(\"scale\", torch.ones(8))",
            ),
            change(
                "Move the batch.",
                "out = model(batch)",
                "out = model(batch.to(next(model.parameters()).device))",
            ),
        ],
        settings: &[],
        references: &[],
        commands: &[CHECK],
        words: &[
            "same device",
            "two devices",
            "should be the same",
            "is on cpu",
            "different devices",
            "same gpu",
        ],
    },
    Guide {
        name: "placeholder-storage-has-not-been-allocated-on-mps-device",
        kind: PlaceholderStorage,
        message: "RuntimeError: Placeholder storage has not been allocated on MPS device!",
        meaning: "An operation on MPS got a tensor that lives on the CPU. It is a device mismatch with a misleading name: nothing is wrong with storage.",
        causes: &[
            "The inputs (often the token ids) were not moved to `mps`, while the model was.",
            "A tensor made inside `forward` has no device.",
            "A library chose `mps` for the model by itself (`device_map`, a trainer), and the script left the inputs on the CPU.",
        ],
        changes: &[
            change(
                "Move the inputs to the model's device.",
                "inputs = tokenizer(text, return_tensors=\"pt\")\nout = model(**inputs)",
                "inputs = tokenizer(text, return_tensors=\"pt\").to(model.device)\nout = model(**inputs)",
            ),
            change(
                "Make new tensors where the input is.",
                "h = torch.zeros(n, d)",
                "h = torch.zeros(n, d, device=x.device)",
            ),
        ],
        settings: &[],
        references: &[reference(
            "a maintainer of PyTorch: one tensor is on the CPU; since 2.4 the message names which",
            "https://github.com/pytorch/pytorch/issues/130790",
        )],
        commands: &[CHECK],
        words: &["placeholder"],
    },
    Guide {
        name: "cannot-copy-out-of-meta-tensor",
        kind: PlaceholderStorage,
        message: "NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module from meta to a different device.",
        meaning: "The module was made on the `meta` device, which has shapes and no values, and was moved before its weights were loaded.",
        causes: &[
            "`.to(device)` after `from_pretrained(..., device_map=...)` or `init_empty_weights()`.",
            "Part of the checkpoint is missing, so some weights never got values.",
        ],
        changes: &[
            change(
                "Allocate, then load.",
                "model = Model(config).to(\"meta\").to(\"cuda\")",
                "model = Model(config).to_empty(device=\"cuda\")\nmodel.load_state_dict(state)",
            ),
            change(
                "Load with the values assigned.",
                "model.load_state_dict(state)",
                "model.load_state_dict(state, assign=True)",
            ),
        ],
        settings: &[],
        references: &[],
        commands: &[CHECK],
        words: &["meta"],
    },
    Guide {
        name: "expected-scalar-type-half-but-found-float",
        kind: DtypeMismatch,
        message: "RuntimeError: expected scalar type Half but found Float",
        meaning: "Weights and inputs of one operation have different element types.",
        causes: &[
            "The model is in half precision and the input is float32.",
            "A tensor made inside `forward` has the default type.",
            "Part of the work runs outside `autocast`.",
        ],
        changes: &[
            change(
                "Give the input the type of the weights.",
                "out = model(x)",
                "out = model(x.to(next(model.parameters()).dtype))",
            ),
            change(
                "Or let PyTorch choose the type for each operation.",
                "out = model(x)",
                "with torch.autocast(\"cuda\", torch.float16):\n    out = model(x)",
            ),
        ],
        settings: &[],
        references: &[],
        commands: &[CHECK],
        words: &["scalar type", "same dtype", "dtype", "bfloat16", "half", "input type"],
    },
    Guide {
        name: "mps-does-not-support-float64",
        kind: UnsupportedDtype,
        message: "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead.",
        meaning: "Metal has no 64-bit floating point. NumPy's default is float64, so it comes in with data.",
        causes: &[
            "A NumPy array was turned into a tensor and moved without a type.",
            "A Python float became a float64 tensor in a library.",
        ],
        changes: &[change(
            "Choose the type before the move.",
            "x = torch.from_numpy(array).to(\"mps\")",
            "x = torch.from_numpy(array).to(\"mps\", dtype=torch.float32)",
        )],
        settings: &[],
        references: &[],
        commands: &[CHECK],
        words: &["float64"],
    },
    Guide {
        name: "mat1-and-mat2-shapes-cannot-be-multiplied",
        kind: ShapeMismatch,
        message: "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x5)",
        meaning: "A linear layer got another number of features than it was made for: the second number of the first shape must equal the first of the second.",
        causes: &[
            "The layer's `in_features` do not fit what comes before it, often after `flatten` with another image size.",
            "The input has its dimensions in another order.",
            "The batch dimension is missing, or one too many is there.",
        ],
        changes: &[
            change(
                "Make the layer as wide as its input (3 in this message).",
                "nn.Linear(4, 5)",
                "nn.Linear(3, 5)",
            ),
            change("Or let it find out at the first call.", "nn.Linear(4, 5)", "nn.LazyLinear(5)"),
        ],
        settings: &[],
        references: &[],
        commands: &[CHECK],
        words: &["mat1 and mat2", "cannot be multiplied"],
    },
];
