//! Operands that don't go together: devices, element types, storage that was never filled.

use super::FaultKind::{DeviceMismatch, DtypeMismatch, PlaceholderStorage};
use super::Weight::{Hints, Names, Overrides, Usual};
use super::type_names::{elements_differ, places_differ};
use super::{TextRule, rule};

/// Two type names in one sentence; the check says what they differ in.
const TYPE_PAIRS: &[&str] = &[
    r"\binput type \(.{1,60}\) and (weight|bias) type \(.{1,60}\) should be the same",
    r"\bexpected (object of )?(data )?type \S*(tensor|type)\S*,? but (got|found)( type)? \S+",
    r"\bexpected \S+tensor\S* \(?(but )?(got|found)( type)? \S+tensor",
    r"\b(got|found|received)( type)? torch\.\S*tensor\S*.{0,60}\bexpected( type)? torch\.\S*tensor\S*",
    r"\bexpected tensor for .{1,60} to have the same type as tensor for .{1,60}; but type \S+ does not equal \S+",
    r"\bexpected a tensor of type \S+ but found a tensor of type \S+",
];

pub(super) const RULES: &[TextRule] = &[
    rule(DeviceMismatch, Names, TYPE_PAIRS).check(places_differ),
    rule(DtypeMismatch, Names, TYPE_PAIRS).check(elements_differ),
    rule(DtypeMismatch, Overrides, &[r"\bhas type (b?float|u?int|bool|complex|key)\w*\[.{0,240}\bhas type (b?float|u?int|bool|complex|key)\w*\["])
        .check(elements_differ),
    rule(DtypeMismatch, Overrides, &[r"\binput types 'tensor<[^']*>' and 'tensor<[^']*>' are not broadcast compatible"])
        .check(elements_differ)
        .cause("An MPS graph mixed two element types; the abort that follows is only its end."),
    rule(DtypeMismatch, Overrides, &[r"\bexpected (u?int|b?float|bool|complex|double|half)\d*,? (passed to .{1,60})?got .{1,60} of type '(float|int|bool|complex)\w*' instead\b"]),
    // A model whose types clash: the words about loading it come first.
    rule(DtypeMismatch, Overrides, &[r"\bType Error: Type \(.{1,40}\) of (input|output) arg .{0,240}\bdoes not match expected type\b"]),
    // Devices.
    rule(DeviceMismatch, Names, &[
        r"\b(all|input|both|these|the)\b.{0,24}\b(tensors?|arrays?|inputs|operands|arguments|parameters|weights)\b.{0,60}\b(on|in) the same (device|gpu|backend)\b",
        r"\b(must|should|to|not|expected|need to|have to) (all )?(be|reside|live|exist)?( on| in)? ?the same (device|gpu)\b",
        r"\b(found|got) at least two devices\b|\btwo devices, \S+ and \S+",
        r"\bexpected (all )?.{0,80}\bdevice (type )?\S+ but (got|found) (device )?(type )?\S+",
        r"\bexpected object of (device type|backend) \w+ but got (device type|backend) \w+",
        r"\bdevice mismatch\b|\bDeviceMismatch\w*|\bmismatched devices?\b|\bdevices? (do not|don't|does not|doesn't) match\b|\bthe devices must match\b",
        r"\b(tensors?|inputs?|operands?|arrays?|q_matmul inputs)\b.{0,60}\bon (two )?different (devices?|gpus?|backends?)\b|\bdifferent devices?\b.{0,60}\btensor",
        r"\bthe same (device|gpu) as\b|\bonly (dense )?(cpu|cuda|gpu) tensors\b|\bPassed CPU tensor to MPS op\b|\bdevice type:? \w+ but (got |found )?(the )?device type\b",
        r"\btensors? (for|on)\b.{0,60}\b(is|are) on (cpu|gpu|cuda|mps)\b.{0,80}\bbut expected (it|them|all of them)? ?to be on\b",
        r"\b(is|are|was|were) on (the )?(device )?(cpu|cuda|mps|gpu|xpu|meta)\S*,? (but|while|whereas|and)\b.{0,60}\b(is|are|was|were|expected)\b.{0,20}\bon\b.{0,12}\b(cpu|cuda|mps|gpu|xpu)",
        r"\b(can't|cannot) convert (\w+:?\d*) device type tensor to numpy\b",
        r"\bindices should be either on (\w+|cpu) or on the same device\b",
        r"\bmodule must have its parameters and buffers on device\b",
        r"\bmust be on the (\w+ )?device\b.{0,24}\bbut\b|\bcannot take the (cpu|gpu|host|device) (address|pointer)\b",
        r"\bget_device is not implemented\b",
        r"\baccess\w*\b.{0,24}\b(ndarra?y|array|tensor|buffer)\b.{0,12}\b(on|from) (the )?(cpu|gpu|host|device) is not (allowed|supported|possible)\b",
        r"\bcannot be accessed from Triton \(cpu tensor\?\)",
        r"\bexpected a '?\w+:?\d*'? (device type for generator|generator device)|\bexpected a '?\w+'? device type for generator\b",
        r"\bincompatible devices for jitted computation\b|\bplaced? on incompatible devices\b",
        r"\b(should|must|expected|needs?|has|have) (to )?(be )?(on|in|at) (the )?(same device|cuda|gpu|cpu|mps)\S*,? but\b.{0,30}\b(is|are|was|were|on|got|found)\b",
        r"\b(data|tensors?|arrays?|buffers?|inputs?|values?|weights?) (is|are) not (on|in) (the )?(cpu|gpu|cuda|mps|host|device)\b",
        r"\bDeviceType\b.{0,40}\bbut got\b.{0,40}\bDeviceType\b|\bexpected\b.{0,60}\bon the same device\b|\b(cuda|mps|gpu)(:\d)? (vs\.?|versus|and|!=) cpu\b|\bcpu (vs\.?|versus|!=) (cuda|mps|gpu)\b|\bcuda:\d (vs\.?|versus|!=) cuda:\d",
        r"\b(tensors?|inputs?|weights?|model|parameters?|arrays?|operands?)\b.{0,60}\b(another|other|wrong|separate|distinct) device\b",
        r"\b(are|is) not (at|on|in) the same device\b|\bmust (all )?be on the current device\b|\bfound two different devices\b|\bFakeTensor Device Propagation\b",
        r"\btensor on device \S+ is not on the expected device \S+",
        r"\bThe client reaches .{1,40}, not a |\bhandle of .{1,40} was used on ",
        r"\bexpected (a )?(cuda|gpu|cpu|mps)( \w+)? tensor\b.{0,30}\b(but )?(got|found|received)\b|\b\w+ (must|should) be (a )?(cuda|gpu) tensor\b|\bmust be on (cuda|a cuda device|gpu|the gpu|cpu)\b",
        r"\bNot (yet )?supported: .{0,40}\bcross[- ]device\b|\bcross-device (copy|operation)",
        r"\barguments are located on different GPUs\b|\bon different CUDA devices\b",
        r"\b(weight|input|mask|bias|index|tensor)\w*\b.{0,40}\b(is|are) (still )?on (the )?(cpu|gpu|cuda\S*|mps\S*)\b.{0,60}\b(other|model|weights?|input|rest)\b",
        r"\bdevice of .{1,40}\b(does not|doesn't|must) match\b",
        r"\bBuffer\b.{0,60}\bis (from|of|associated with) a(nother| different) device\b|\bdoes not belong to this device\b|\bcreated (with|from|by) a different device\b|\bof .{0,60}\bdoesn't match (device )?Device\b|\bDevice(MismatchError)? .{0,60}\bdoes not match\b",
    ])
    .unless(&[r"\bexpected device meta\b|\bdevice meta\b|'meta'|\bdevice_map\b|\bmeta and \w+|\band meta\b"]),
    // Element types.
    rule(DtypeMismatch, Names, &[
        r"\bexpected scalar type \w+ but (found|got) \w+",
        r"\bexpected object of scalar type \w+ but got scalar type \w+",
        r"\bFound dtype \w+ but expected \w+|\bexpected (data ?type|dtype)\S* \S+,? (but|and) (got|found|received)\b",
        r"\b(expected|must|should|to|both|not|require\w*|need to)\b.{0,80}\bhave the same (scalar |data ?|element ?|input )?(dtypes?|types?)\b",
        r"\b(require|requires|expects?|must have|should have|need|has|have) .{0,40}\b(same|equal|matching|identical|consistent) (dtypes?|data types?|element types?|scalar types?|types)\b",
        r"\b(element|tensor|data|scalar|input) types? mismatch\b|\bdtypes? mismatch\b|\bDTypeMismatch\w*|\bmismatch(ed)? (dtypes?|data ?types?|element types?|tensor types?|precision)\b|\b(data ?types?|dtypes?|element types?)\b.{0,40}\b(do not|don't|does not|doesn't|did not|not) match\b",
        r"\bdtypes? .{0,60}\bmust match\b|\bdtypes match, got\b|\bdtypes? must be the same\b",
        r"\bUnexpected input data type\b.{0,120}\bexpected\b",
        r"\bType Error: Type( parameter)? \(.{1,40}\) of .{0,120}\b(does not match expected type|bound to different types)\b",
        r"\bresult type \w+ can't be cast to\b|\bcan't be cast to the desired output type\b",
        r"\bto have one of the following scalar types\b|\btensors used as indices must be (of )?(long|int|byte|bool|type)",
        r"\bcannot have different data ?types?\b|\bdifferent (data ?types?|dtypes?|element types?)\b.{0,40}\b(tensor|operand|input|NDArray|argument)",
        r"\brequires the same element type for all operands\b|\bsame element type\b",
        r"\bunexpected dtype, expected: \w+, got: \w+",
        r"\btype == GGML_TYPE_\w+|\bAssertionError: \S{0,12}(b?float|u?int|complex)\d+ != \S{0,12}(b?float|u?int|complex)\d+",
        r"\bexpected (long|int|float|half|double|bfloat16|bool|short|byte)\b,? (but|and) (got|found|received) (long|int|float|half|double|bfloat16|bool|short|byte)\b|\bmatching dtypes?\b|\bdtypes? (are|is) different\b|\b(mixed|mixing) (dtypes?|data types)\b|\bdtypes? (differ|disagree|conflict)",
        r"\bMismatched Tensor types\b|\bMixed precision .{0,30}\bnot (supported|allowed)\b|\bmixed dtype \(CPU\)",
        r"\bAttempting to unscale FP16 gradients\b|\bexpected (an? )?(floating[- ]point|float\w*|integer|integral|int\w*|long|bool\w*|complex) (dtype|type|tensor|values?)\b.{0,80}\b(got|found|but|received)\b",
        r"\b(query|key|value|input|weight|tensor|lhs|rhs|self|mat2?)\b.{0,60}\bdtype\b.{0,60}\b(but|instead|!=|while|whereas)\b.{0,60}\b(float|half|bfloat|double|int|long|bf16|f16|f32|fp16|fp32)",
        r"\b(weights?|inputs?|operands?|tensors?|activations?)\b.{0,40}\b(in|is|are|of type) (f(loat|p)?16|f(loat|p)?32|bf(loat)?16|half|f64|float64)\b.{0,40}\b(but|while|whereas|and)\b.{0,60}\b(in|is|are|of type|needs?|expects?|want\w*) (f(loat|p)?16|f(loat|p)?32|bf(loat)?16|half|f64|float64)\b",
        r"\b(f16|f32|bf16|float16|float32|half|fp16|fp32|double|float64)\b (vs\.?|versus|!=|and) (f16|f32|bf16|float16|float32|half|fp16|fp32|double|float64)\b.{0,20}\b(mismatch|differ|clash|conflict)",
    ])
    .unless(&[r"\bcopying a param\b|\bstate_dict\b"])
    .without(&[r"\bshader (validation|module)\b|\bcreate_shader_module\b|\bwgsl\b"]),
    rule(DtypeMismatch, Usual, &[
        r"\bexpected:? \(?(tensor\()?(f16|f32|f64|bf16|u8|u32|i64|float16|float32|float64|bfloat16|half|double|int32|int64)\)?,? (but )?(got|found|actual):? \(?(tensor\()?(f16|f32|f64|bf16|u8|u32|i64|float16|float32|float64|bfloat16|half|double|int32|int64)\b",
        r"\bexpected dtype\b.{0,60}\b(got|found|but)\b|\bwrong dtype\b|\bincompatible dtypes?\b|\bincompatible (data |element |scalar )types?\b",
        r"\bexpected data type \S+,? but got \S+",
    ]),
    // Storage.
    rule(PlaceholderStorage, Names, &[
        r"\bPlaceholder (storage|tensor)\b.{0,40}\b(has not been allocated|is empty|not allocated)",
        r"\bPlaceholder tensor is empty\b",
        r"\bits data is not allocated yet\b|\bnon-zero number of elements, but its data\b",
        r"\b(data pointer|storage) of (a )?tensor that (doesn't|does not) have storage\b|\btensor (doesn't|does not|didn't) have storage\b|\b(lazy|opaque|fake|meta|functional) tensors? (do not|don't|doesn't|does not)\b.{0,12}\bstorage\b",
        r"\bCannot (access|copy|get) (the )?(data|storage|out)\b.{0,60}\b(meta|fake|functional|uninitiali[sz]ed|undefined|opaque)",
        r"\bcopy out of meta tensor\b|\bno data!|\bcannot be called on meta tensors?\b",
        r"\bwith arguments from the 'Meta' backend\b|\bon the meta device\b|\bmeta tensors?\b.{0,40}\b(no data|not|cannot|can't|materiali[sz]e|still)\b|\bstill on (the )?meta\b",
        r"\bnot on (the )?expected device meta\b|\bdevice meta is not on (the )?expected\b|\bexpected device meta\b|\bexpected device \S+ but got (device )?meta\b|\btwo devices, (meta and|\S+ and meta)\b",
        r"\barray without a primitive\b|\bcannot access storage of\b|\bsrcBuf length\b|\bstorage to be allocated\b|\bon (the )?meta device\b|\bbuffer not allocated for\b",
        r"\binvalid python storage\b|\bnever (been )?(materiali[sz]ed|allocated|initiali[sz]ed|written)\b|\bis on the meta device\b|\bwe need a `?value`? to put in\b|\bdata pointer\b.{0,40}\b(null|invalid|not allocated|no storage)\b",
        r"\b(tensor|variable|array|buffer) holds no (memory|allocation)\b|\bholder_ should not be null\b|\bmeta ?data must be valid\b.{0,40}\bmutable[ _]data\b",
        r"\bZeroParamStatus\b|\bds_status\b|'status': 'NOT_AVAILABLE'|\buninitiali[sz]ed handle\b|\bShould have handle for tensor\b",
        r"\bbytes were never written\b|\bstorage holds no allocation\b|\bcouldn't find resource for that handle\b",
        r"\b(never|not( yet)?|un)[ -]?(written|initiali[sz]ed|allocated|materiali[sz]ed|filled)\b.{0,30}\b(storage|tensor|buffer|memory)\b.{0,30}\bread\b|\bread(ing)?\b.{0,40}\b(uninitiali[sz]ed|unwritten|never[- ]written|unallocated)\b.{0,30}\b(storage|tensor|buffer|memory)\b",
        r"\buninitiali[sz]ed (parameter|tensor|storage|buffer)\b|\bUninitializedParameter\b",
        r"\b(array|buffer|tensor) has been (deleted|donated|freed|released|invalidated|disposed)\b|\bdeleted or donated buffer\b|\bTensor is disposed\b|\bbuffer (has been|was|is) (deleted|donated)\b",
        r"\bout of bounds for storage of size 0\b|\bstorage of size 0\b|\bstorage has been (freed|resized to 0|released)\b|\bempty storage\b",
        r"\btensor (has|had) no (storage|data)\b|\bno storage (allocated|attached)\b|\bstorage (is|was|has) not( been)? (allocated|initiali[sz]ed)\b|\bunallocated (storage|tensor|buffer)\b|\bnull(ptr)? (storage|data pointer)\b",
    ])
    .cause("A tensor was read whose storage was never allocated or filled."),
    rule(PlaceholderStorage, Hints, &[
        r"\b\[?Invalid (Buffer|Texture)\b.{0,40}\bis invalid\b|\bBuffer\b.{0,40}\b(is invalid|has been destroyed)\b",
        r"\btensor\b.{0,20}\bnot allocated\b|\bdata_ptr\b.{0,30}\bnull\b",
    ]),
];
